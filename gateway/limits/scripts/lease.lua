-- Shared by all scripts, behind the tables of dimensions.py: the NAMES of the meters, of which requests hold the first
-- HELD ones, their SLOTS, and the FIELDS of a counter: what is held of those, then what was used of each meter.
-- KEYS[1]: leases by expiry (sorted set). KEYS[2]: lease records (hash, by claim id).
-- A record holds the amount of each meter at the meter's slot, the names of the counters at 4 and those of the
-- concurrency counters at 5; the counters hold exactly its amounts, so that the sum of the records is always the sum of
-- what the counters hold. Gateways of several versions share the records: slots keep their meaning.
local METERS, COUNTERS, GAUGES = #NAMES, 4, 5
local DAY = 86400000

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local write = {}
for f = 1, 2 * HELD do write[2 * f - 1] = FIELDS[f] end

-- Takes what `record` holds (nil: nothing) from a counter and adds what was used (by meter; nil: nothing).
local function move(key, record, used)
  local v = redis.call('HMGET', key, unpack(FIELDS, 1, 2 * HELD))
  local exists, booked = v[1] or v[HELD + 1], false
  for m = 1, HELD do
    local left, more = (v[m] or 0) - (record and record[SLOTS[m]] or 0), used and used[m] or 0
    write[2 * m] = left > 0 and left or 0
    write[2 * (HELD + m)] = (v[HELD + m] or 0) + more
    booked = booked or more ~= 0
  end
  if not exists and not booked then return end
  redis.call('HSET', key, unpack(write))
  if not exists then redis.call('PEXPIRE', key, DAY) end
end

-- Ends the lease of a claim, if there is one, and books what was used. Returns the packed record or nil.
local function finish(id, used)
  local packed = redis.call('HGET', KEYS[2], id)
  if not packed then return nil end
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[1], id)
  local record = cmsgpack.unpack(packed)
  for _, key in ipairs(record[COUNTERS]) do move(key, record, used) end
  for _, key in ipairs(record[GAUGES]) do
    if (tonumber(redis.call('GET', key)) or 0) > 0 then redis.call('DECR', key) end
  end
  return packed
end

-- Frees claims whose holder went away. The record is kept for a day: a late settlement still books what was used.
local function free_expired(now, most)
  local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, most)
  for _, id in ipairs(ids) do
    local packed = finish(id)
    if packed then
      redis.call('SET', KEYS[2] .. ':late:' .. id, packed, 'PX', DAY)
    else
      redis.call('ZREM', KEYS[1], id)
    end
  end
  return #ids
end

