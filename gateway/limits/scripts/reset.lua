
-- reset: forget what was used in the current windows. What is held stays, so that requests in flight settle exactly.
-- KEYS[3..] and ARGV[1..]: the rules as in reserve. Returns how many counters were cleared.
local next_key, cleared = 3, 0
for i = 1, #ARGV do
  local concurrent, sliding = string.match(ARGV[i], '^%S+ %S+ %S+ %S+ %S+ %S+ %S+ (%S+) %S+ (%S+) %S+$')
  for key = next_key, next_key + tonumber(sliding) do
    if redis.call('EXISTS', KEYS[key]) == 1 then
      redis.call('HSET', KEYS[key], 'r', 0, 'ui', 0, 'uo', 0, 'uc', 0)
      cleared = cleared + 1
    end
  end
  next_key = next_key + 1 + tonumber(sliding) + (tonumber(concurrent) >= 0 and 1 or 0)
end
return cleared
