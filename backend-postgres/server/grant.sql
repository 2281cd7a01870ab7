-- What a role needs that uses the namespace: no right to any table.

GRANT USAGE ON SCHEMA {ns} TO {role};
GRANT EXECUTE ON FUNCTION
    {ns}.begin_session(bytea, text, bigint),
    {ns}.renew(bytea, bigint, bigint, text, text, bigint, bytea, bigint, text),
    {ns}.renew_for(bytea, bigint, bigint, text, text, bigint, bytea, bigint, text, bigint),
    {ns}.end_sessions(bytea[], text),
    {ns}.adopt_within(bytea, bigint, bytea, bigint),
    {ns}.give_up_within(bytea, bigint, bytea, bigint),
    {ns}.settle_within(bytea, bigint, bytea, bigint),
    {ns}.note(bytea, text),
    {ns}.acquire(bytea, bigint, bigint, text[], text[], bigint[], boolean, bigint, boolean, text[]),
    {ns}.acquire_one(bytea, bigint, bigint, text, text, bigint, boolean, bigint, boolean),
    {ns}.acquire_many(bytea, bigint[], bigint[], text[], text[], bigint),
    {ns}.watched(text[], text[], bigint[]),
    {ns}.release(bytea, bigint, text[]),
    {ns}.release_one(bytea, bigint, text),
    {ns}.release_many(bytea, bigint[], text[]),
    {ns}.confirm(bytea, bigint, text[], text[]),
    {ns}.sweep(bytea, bigint),
    {ns}.sweep_namespace(bigint),
    {ns}.watch(bigint[], text, bigint, text[]),
    {ns}.unwatch(bigint[]),
    {ns}.records(text[], boolean),
    {ns}.keys(text, text, text, bigint),
    {ns}.keys_of(bytea, bigint, text, bigint),
    {ns}.list_sessions(bytea, bigint),
    {ns}.these_sessions(bytea[]),
    {ns}.leases(bytea[]),
    {ns}.evict(text, text),
    {ns}.about()
TO {role};
