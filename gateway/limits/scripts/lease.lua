-- Shared by all scripts. KEYS[1]: leases by expiry (sorted set). KEYS[2]: lease records (hash, by claim id).
-- A record is {prompt, output, cost, {counter keys}, {concurrency keys}}; the counters hold exactly its amounts, so
-- that the sum of the records is always the sum of what the counters hold.
-- Counter fields: r requests; ui uo uc settled tokens in, out, money; hi ho hc the same, held by leases.
local DAY = 86400000

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function move(key, held_in, held_out, held_cost, used_in, used_out, used_cost)
  local v = redis.call('HMGET', key, 'hi', 'ho', 'hc', 'ui', 'uo', 'uc')
  local gone = not v[1] and not v[4]
  if gone and used_in == 0 and used_out == 0 and used_cost == 0 then return end
  redis.call('HSET', key,
    'hi', math.max(0, (tonumber(v[1]) or 0) - held_in),
    'ho', math.max(0, (tonumber(v[2]) or 0) - held_out),
    'hc', math.max(0, (tonumber(v[3]) or 0) - held_cost),
    'ui', (tonumber(v[4]) or 0) + used_in,
    'uo', (tonumber(v[5]) or 0) + used_out,
    'uc', (tonumber(v[6]) or 0) + used_cost)
  if gone then redis.call('PEXPIRE', key, DAY) end
end

-- Ends the lease of a claim, if there is one, and books what was used. Returns the packed record or nil.
local function finish(id, used_in, used_out, used_cost)
  local packed = redis.call('HGET', KEYS[2], id)
  if not packed then return nil end
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[1], id)
  local record = cmsgpack.unpack(packed)
  for _, key in ipairs(record[4]) do
    move(key, record[1], record[2], record[3], used_in, used_out, used_cost)
  end
  for _, key in ipairs(record[5]) do
    if (tonumber(redis.call('GET', key)) or 0) > 0 then redis.call('DECR', key) end
  end
  return packed
end

-- Frees claims whose holder went away. The record is kept for a day: a late settlement still books what was used.
local function free_expired(now, most)
  local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, most)
  for _, id in ipairs(ids) do
    local packed = finish(id, 0, 0, 0)
    if packed then
      redis.call('SET', KEYS[2] .. ':late:' .. id, packed, 'PX', DAY)
    else
      redis.call('ZREM', KEYS[1], id)
    end
  end
  return #ids
end
