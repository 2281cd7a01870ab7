-- A new function may be run by everybody; these by nobody who was not given the right.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {ns} FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA {ns} FROM PUBLIC;
