-- Checks the scripts together with .ci/lint_lua.py.
-- These are the globals that Redis gives a script: Lua 5.1 without os, io, require and print. Redis refuses a script that
-- reads or sets another global, but only when the line runs.
stds.redis = {
  read_globals = {
    'ARGV', 'KEYS', 'bit', 'cjson', 'cmsgpack', 'coroutine', 'math', 'redis', 'string', 'struct', 'table',
    'assert', 'error', 'getmetatable', 'ipairs', 'next', 'pairs', 'pcall', 'rawequal', 'rawget', 'rawset', 'select',
    'setmetatable', 'tonumber', 'tostring', 'type', 'unpack', 'xpcall',
  },
}
std = 'redis'
-- A long line is no mistake, and the lines of a header describe one key or one argument each.
max_line_length = false
