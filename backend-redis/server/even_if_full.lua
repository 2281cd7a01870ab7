-- What follows frees memory sooner or later, and is taken though there is none left: so is a script of which the first
-- write needs none.
call('HDEL', SESSIONS, '')
