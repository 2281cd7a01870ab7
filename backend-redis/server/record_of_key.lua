-- key -> its record, with those who hold something below it
local key = ARGV[1]
local value = call('HGET', RECORDS, key)
local found = shown(key, value and parse(key, value) or {}, is_path(key))
return found and { found } or {}
