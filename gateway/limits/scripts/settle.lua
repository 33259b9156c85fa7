-- settle: replace a claim by what was used; once, however often it is called.
-- ARGV[1] (JSON): id, unseen, and what was used of each meter that requests hold; unseen is 1 if the claim was granted
-- without this store, 2 if nobody was told that it was granted, so that its request must not be counted either.
-- KEYS[3..] and ARGV[2..]: the rules as in reserve, only when unseen is 1.
-- Returns 1 when something was booked, 0 when that had been done before.
local settlement, used = cjson.decode(ARGV[1]), {}
local id, unseen = settlement.id, settlement.unseen
for m = 1, HELD do used[m] = settlement[NAMES[m]] end
if unseen == 2 then
  local packed = finish(id)
  if not packed then return 0 end
  for _, key in ipairs(cmsgpack.unpack(packed)[COUNTERS]) do
    for m = HELD + 1, METERS do
      local field = FIELDS[HELD + m]
      if (tonumber(redis.call('HGET', key, field)) or 0) > 0 then redis.call('HINCRBY', key, field, -1) end
    end
  end
  return 1
end
-- A claim granted elsewhere may still have reached this store late, so its absence does not say "settled": remember it.
if unseen == 1 and not redis.call('SET', KEYS[2] .. ':unseen:' .. id, '1', 'NX', 'PX', DAY) then return 0 end
if finish(id, used) then return 1 end

local late = KEYS[2] .. ':late:' .. id
local packed = redis.call('GET', late)
if packed then
  redis.call('DEL', late)
  for _, key in ipairs(cmsgpack.unpack(packed)[COUNTERS]) do move(key, nil, used) end
  return 1
end

if unseen ~= 1 then return 0 end
local next_key = 3
for i = 2, #ARGV do
  local rule, key = cjson.decode(ARGV[i]), KEYS[next_key]
  next_key = next_key + 1 + (rule.sliding and 1 or 0) + (rule.concurrent and 1 or 0)
  move(key, nil, used)
  for m = HELD + 1, METERS do
    if rule[NAMES[m]] then redis.call('HINCRBY', key, FIELDS[HELD + m], 1) end
  end
  redis.call('PEXPIREAT', key, rule.finish + math.max(rule.finish - rule.start, DAY))
end
return 1
