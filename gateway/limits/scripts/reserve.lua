-- reserve: hold a claim in all windows or in none.
-- KEYS[3..]: per rule its counter, then the previous window's (sliding rules), then the concurrency counter (if any).
-- ARGV[1]: the claim (JSON): id, most (output tokens), choices, fixed, price, floor, lease, and by name the amount of
-- each meter that no answer adds to.
-- ARGV[2..]: the rules (JSON): start, finish, rate, sliding, warn, and a number for each of the DIMENSIONS they limit.
-- Answers "R now" when a window does not hold the server's time, "N ..." for no, "Y ..." for yes (see store.py).
local now = now_ms()
free_expired(now, 32)

local claim = cjson.decode(ARGV[1])
local output, choices, fixed, price, lease = claim.most, claim.choices, claim.fixed, claim.price, claim.lease
local shortest = math.min(output, choices)
local amounts = {}
for m = 1, METERS do amounts[m] = claim[NAMES[m]] or 0 end

local function taken_by_claim(dimension)
  local sum = 0
  for _, m in ipairs(dimension.meters) do sum = sum + amounts[m] end
  return sum
end

local rules, cap, clamp, refusal = {}, output, -1, nil
local next_key = 3

local function refuse(rule, kind, used, held, limit, ask, previous, quantity)
  -- The refusal that lasts longest is the one worth telling: a budget before a rate, a later end before an earlier.
  local rank = (kind == 'budget' and 1e15 or 0) + rule.finish
  if refusal and refusal.rank >= rank then return end
  refusal = { rank = rank, text = string.format('N %.0f %s %d %.0f %.0f %.0f %.0f %.0f %s',
    now, kind, rule.index, used, held, limit, ask, previous, quantity) }
end

local function clamp_to(rule, room)
  if room < cap then cap, clamp = room, rule.index end
end

-- The least output worth starting for. A budget is spent to its last token; in a rate window waiting is better.
local function least_tokens(rule, room)
  if not rule.rate or output <= 0 then return shortest end
  return math.max(shortest, math.min(output, claim.floor * choices, room))
end

for i = 2, #ARGV do
  local rule = cjson.decode(ARGV[i])
  local start, finish_at = rule.start, rule.finish
  if now < start or now >= finish_at then return 'R ' .. string.format('%.0f', now) end
  rule.index, rule.span, rule.key, rule.taken = i - 2, finish_at - start, KEYS[next_key], {}
  next_key = next_key + 1

  local values, before = redis.call('HMGET', rule.key, unpack(FIELDS)), nil
  rule.new = not values[#FIELDS] -- of the fields that only this script creates
  if rule.sliding then
    before = redis.call('HMGET', KEYS[next_key], unpack(FIELDS))
    next_key = next_key + 1
  end
  for f = 1, #FIELDS do
    values[f] = (values[f] or 0) + 0
    if before then before[f] = (before[f] or 0) + 0 end
  end
  rule.values = values

  if rule.concurrent then
    rule.gauge = KEYS[next_key]
    next_key = next_key + 1
    local flying = tonumber(redis.call('GET', rule.gauge)) or 0
    if flying + 1 > rule.concurrent then
      refuse(rule, 'concurrency', flying, flying, rule.concurrent, 1, 0, 'concurrent')
    end
  end

  for d, dimension in ipairs(DIMENSIONS) do
    local limit = rule[dimension.name]
    if limit then
      local spent, claimed, earlier = 0, 0, 0
      for _, m in ipairs(dimension.meters) do
        spent = spent + values[HELD + m]
        if m <= HELD then claimed = claimed + values[m] end
        if before then earlier = earlier + before[HELD + m] + (m <= HELD and before[m] or 0) end
      end
      local taken = spent + claimed + math.floor(earlier * (finish_at - now) / rule.span)
      local kind = rule.rate and dimension.kind or 'budget'
      rule.taken[d] = taken
      if dimension.grows == 'money' then
        if fixed > 0 or price > 0 then -- what costs nothing is no matter of money
          local left = (limit - taken) * 1e6 - fixed
          local affordable = left < 0 and -1 or (price > 0 and math.floor(left / price) or output)
          if affordable < shortest then
            local ask = math.ceil((fixed + shortest * price) / 1e6)
            refuse(rule, kind, spent, claimed, limit, ask, earlier, dimension.name)
          end
          clamp_to(rule, affordable)
        end
      else
        local base = taken_by_claim(dimension)
        local left, least = limit - taken - base, 0
        if dimension.grows then
          least = least_tokens(rule, limit - base)
          clamp_to(rule, left)
        end
        if left < least then refuse(rule, kind, spent, claimed, limit, base + least, earlier, dimension.name) end
      end
    end
  end
  rules[#rules + 1] = rule
end

if refusal then return refusal.text end

local granted = cap - cap % choices
if granted >= output then clamp = -1 end
claim.output, claim.cost = granted, math.ceil((fixed + granted * price) / 1e6)
local record, counters, gauges = {}, {}, {}
for m = 1, METERS do
  amounts[m] = claim[NAMES[m]]
  if m <= HELD then record[SLOTS[m]] = amounts[m] end
end
local tightest, filled = {}, {}

for _, rule in ipairs(rules) do
  local write = {}
  for m = 1, METERS do
    local field = m <= HELD and m or HELD + m
    local more = (m <= HELD or rule[NAMES[m]]) and amounts[m] or 0
    write[2 * m - 1], write[2 * m] = FIELDS[field], rule.values[field] + more
  end
  redis.call('HSET', rule.key, unpack(write))
  if rule.new then
    -- Outlives the window: by its sliding successor and by the leases it may hold.
    redis.call('PEXPIREAT', rule.key, rule.finish + math.max(rule.span, 3 * lease))
  end
  counters[#counters + 1] = rule.key
  if rule.gauge then
    redis.call('INCR', rule.gauge)
    redis.call('PEXPIRE', rule.gauge, 3 * lease)
    gauges[#gauges + 1] = rule.gauge
  end

  local share = 0
  for d, dimension in ipairs(DIMENSIONS) do
    local limit = rule[dimension.name]
    if limit then
      local taken, group = rule.taken[d] + taken_by_claim(dimension), dimension.headroom
      share = math.max(share, limit > 0 and math.floor(taken * 1000 / limit) or 1000)
      if group and (not tightest[group] or limit - taken < tightest[group].left) then
        tightest[group] = { index = rule.index, left = limit - taken }
      end
    end
  end
  if share >= rule.warn then filled[#filled + 1] = rule.index .. ':' .. share end
end

redis.call('ZADD', KEYS[1], now + lease, claim.id)
record[COUNTERS], record[GAUGES] = counters, gauges
redis.call('HSET', KEYS[2], claim.id, cmsgpack.pack(record))
local none = { index = -1, left = 0 }
local requests, tokens = tightest.requests or none, tightest.tokens or none
return string.format('Y %.0f %.0f %d %d %.0f %d %.0f ', now, granted, clamp,
  requests.index, requests.left, tokens.index, tokens.left) .. table.concat(filled, ' ')
