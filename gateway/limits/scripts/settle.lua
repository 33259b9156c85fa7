
-- settle: replace a claim by what was used; once, however often it is called.
-- ARGV[1]: "id tokens_in tokens_out cost unseen"; unseen is 1 if the claim was granted without this store, 2 if nobody
-- was told that it was granted, so that its request must not be counted either.
-- KEYS[3..] and ARGV[2..]: the rules as in reserve, only when unseen is 1.
-- Returns 1 when something was booked, 0 when that had been done before.
local id, used_in, used_out, used_cost, unseen = string.match(ARGV[1], '^(%S+) (%S+) (%S+) (%S+) (%S+)$')
used_in, used_out, used_cost = tonumber(used_in), tonumber(used_out), tonumber(used_cost)
if unseen == '2' then
  local packed = finish(id, 0, 0, 0)
  if not packed then return 0 end
  for _, key in ipairs(cmsgpack.unpack(packed)[4]) do
    if (tonumber(redis.call('HGET', key, 'r')) or 0) > 0 then redis.call('HINCRBY', key, 'r', -1) end
  end
  return 1
end
-- A claim granted elsewhere may still have reached this store late, so its absence does not say "settled": remember it.
if unseen == '1' and not redis.call('SET', KEYS[2] .. ':unseen:' .. id, '1', 'NX', 'PX', DAY) then return 0 end
if finish(id, used_in, used_out, used_cost) then return 1 end

local late = KEYS[2] .. ':late:' .. id
local packed = redis.call('GET', late)
if packed then
  redis.call('DEL', late)
  for _, key in ipairs(cmsgpack.unpack(packed)[4]) do move(key, 0, 0, 0, used_in, used_out, used_cost) end
  return 1
end

if unseen ~= '1' then return 0 end
local next_key = 3
for i = 2, #ARGV do
  local start, finish_at, requests, concurrent, sliding = string.match(ARGV[i],
    '^(%S+) (%S+) (%S+) %S+ %S+ %S+ %S+ (%S+) %S+ (%S+) %S+$')
  local key = KEYS[next_key]
  next_key = next_key + 1 + tonumber(sliding) + (tonumber(concurrent) >= 0 and 1 or 0)
  move(key, 0, 0, 0, used_in, used_out, used_cost)
  if tonumber(requests) >= 0 then redis.call('HINCRBY', key, 'r', 1) end
  redis.call('PEXPIREAT', key, finish_at + math.max(finish_at - start, DAY))
end
return 1
