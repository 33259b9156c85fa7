-- reset: forget what was used in the current windows. What is held stays, so that requests in flight settle exactly.
-- KEYS[3..] and ARGV[1..]: the rules as in reserve. Returns how many counters were cleared.
local zeros = {}
for m = 1, METERS do zeros[2 * m - 1], zeros[2 * m] = FIELDS[HELD + m], 0 end
local next_key, cleared = 3, 0
for i = 1, #ARGV do
  local rule = cjson.decode(ARGV[i])
  for key = next_key, next_key + (rule.sliding and 1 or 0) do
    if redis.call('EXISTS', KEYS[key]) == 1 then
      redis.call('HSET', KEYS[key], unpack(zeros))
      cleared = cleared + 1
    end
  end
  next_key = next_key + 1 + (rule.sliding and 1 or 0) + (rule.concurrent and 1 or 0)
end
return cleared
