
-- reserve: hold a claim in all windows or in none.
-- KEYS[3..]: per rule its counter, then the previous window's (sliding rules), then the concurrency counter (if any).
-- ARGV[1]: "id prompt output choices fixed_cost price_out min_grant lease_ms".
-- ARGV[2..]: per rule "start end requests tokens in out cost concurrent rate sliding warn_permille"; -1: no limit.
-- Answers "R now" when a window does not hold the server's time, "N ..." for no, "Y ..." for yes (see store.py).
local REQUESTS, TOKENS, CONCURRENCY, BUDGET = 0, 1, 2, 3
local now = now_ms()
free_expired(now, 32)

local id, prompt, output, choices, fixed, price, floor, lease =
  string.match(ARGV[1], '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
prompt, output, choices, fixed = tonumber(prompt), tonumber(output), tonumber(choices), tonumber(fixed)
price, floor, lease = tonumber(price), tonumber(floor), tonumber(lease)

local rules, cap, clamp, refusal = {}, output, -1, nil
local next_key = 3

local function refuse(rule, kind, used, held, limit, ask, previous, quantity)
  -- The refusal that lasts longest is the one worth telling: a budget before a rate, a later end before an earlier.
  local rank = (kind == BUDGET and 1e15 or 0) + rule.finish
  if refusal and refusal.rank >= rank then return end
  refusal = { rank = rank, text = string.format('N %.0f %d %d %.0f %.0f %.0f %.0f %.0f %d',
    now, kind, rule.index, used, held, limit, ask, previous, quantity) }
end

for i = 2, #ARGV do
  local rule = { index = i - 2 }
  local start, finish_at, lr, lt, li, lo, lc, ln, rate, sliding, warn =
    string.match(ARGV[i], '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  start, finish_at = tonumber(start), tonumber(finish_at)
  if now < start or now >= finish_at then return 'R ' .. string.format('%.0f', now) end
  rule.finish, rule.warn = finish_at, tonumber(warn)
  rule.lr, rule.lt, rule.li = tonumber(lr), tonumber(lt), tonumber(li)
  rule.lo, rule.lc, rule.ln = tonumber(lo), tonumber(lc), tonumber(ln)
  rule.span = finish_at - start
  rule.key = KEYS[next_key]
  next_key = next_key + 1

  local v = redis.call('HMGET', rule.key, 'r', 'ui', 'uo', 'uc', 'hi', 'ho', 'hc')
  rule.new = not v[1]
  local r, ui, uo, uc = tonumber(v[1]) or 0, tonumber(v[2]) or 0, tonumber(v[3]) or 0, tonumber(v[4]) or 0
  local hi, ho, hc = tonumber(v[5]) or 0, tonumber(v[6]) or 0, tonumber(v[7]) or 0
  local pr, pi, po, pc = 0, 0, 0, 0
  if sliding == '1' then
    local p = redis.call('HMGET', KEYS[next_key], 'r', 'ui', 'uo', 'uc', 'hi', 'ho', 'hc')
    next_key = next_key + 1
    pr = tonumber(p[1]) or 0
    pi = (tonumber(p[2]) or 0) + (tonumber(p[5]) or 0)
    po = (tonumber(p[3]) or 0) + (tonumber(p[6]) or 0)
    pc = (tonumber(p[4]) or 0) + (tonumber(p[7]) or 0)
  end
  local function carried(amount) return math.floor(amount * (finish_at - now) / rule.span) end
  rule.requests, rule.hi, rule.ho, rule.hc = r, hi, ho, hc
  rule.all_requests = r + carried(pr)
  rule.all_in, rule.all_out = ui + hi + carried(pi), uo + ho + carried(po)
  rule.all_tokens = ui + uo + hi + ho + carried(pi + po)
  rule.all_cost = uc + hc + carried(pc)
  if rule.ln >= 0 then
    rule.flying_key = KEYS[next_key]
    next_key = next_key + 1
    local flying = tonumber(redis.call('GET', rule.flying_key)) or 0
    if flying + 1 > rule.ln then refuse(rule, CONCURRENCY, flying, flying, rule.ln, 1, 0, 5) end
  end

  if rule.lr >= 0 and rule.all_requests + 1 > rule.lr then
    refuse(rule, rate == '1' and REQUESTS or BUDGET, r, 0, rule.lr, 1, pr, 0)
  end

  local kind = rate == '1' and TOKENS or BUDGET
  -- The least output worth starting for. A budget is spent to its last token; in a rate window waiting is better.
  local function room(left, limit, base, used, held, previous, quantity)
    local least = math.min(output, choices)
    if rate == '1' and output > 0 then
      least = math.max(least, math.min(output, floor * choices, limit - base))
    end
    if left < least then refuse(rule, kind, used, held, limit, base + least, previous, quantity) end
    if left < cap then cap, clamp = left, rule.index end
  end
  if rule.lt >= 0 then room(rule.lt - rule.all_tokens - prompt, rule.lt, prompt, ui + uo, hi + ho, pi + po, 1) end
  if rule.li >= 0 and rule.all_in + prompt > rule.li then refuse(rule, kind, ui, hi, rule.li, prompt, pi, 2) end
  if rule.lo >= 0 then room(rule.lo - rule.all_out, rule.lo, 0, uo, ho, po, 3) end
  if rule.lc >= 0 and (fixed > 0 or price > 0) then -- what costs nothing is no matter of money
    local left = (rule.lc - rule.all_cost) * 1e6 - fixed
    local affordable = left < 0 and -1 or (price > 0 and math.floor(left / price) or output)
    local least = math.min(output, choices)
    if affordable < least then
      refuse(rule, BUDGET, uc, hc, rule.lc, math.ceil((fixed + least * price) / 1e6), pc, 4)
    end
    if affordable < cap then cap, clamp = affordable, rule.index end
  end
  rules[#rules + 1] = rule
end

if refusal then return refusal.text end

local granted = cap - cap % choices
if granted >= output then clamp = -1 end
local cost = math.ceil((fixed + granted * price) / 1e6)
local counters, flying = {}, {}
local request_index, request_left, token_index, token_left = -1, 0, -1, 0
local filled = {}

for _, rule in ipairs(rules) do
  redis.call('HSET', rule.key, 'r', rule.requests + (rule.lr >= 0 and 1 or 0),
    'hi', rule.hi + prompt, 'ho', rule.ho + granted, 'hc', rule.hc + cost)
  if rule.new then
    -- Outlives the window: by its sliding successor and by the leases it may hold.
    redis.call('PEXPIREAT', rule.key, rule.finish + math.max(rule.span, 3 * lease))
  end
  counters[#counters + 1] = rule.key
  if rule.flying_key then
    redis.call('INCR', rule.flying_key)
    redis.call('PEXPIRE', rule.flying_key, 3 * lease)
    flying[#flying + 1] = rule.flying_key
  end

  local share = 0
  local function see(limit, taken)
    if limit >= 0 then share = math.max(share, limit > 0 and math.floor(taken * 1000 / limit) or 1000) end
    return limit - taken
  end
  local left = see(rule.lr, rule.all_requests + 1)
  if rule.lr >= 0 and (request_index < 0 or left < request_left) then request_index, request_left = rule.index, left end
  local function tightest(limit, taken)
    local rest = see(limit, taken)
    if limit >= 0 and (token_index < 0 or rest < token_left) then token_index, token_left = rule.index, rest end
  end
  tightest(rule.lt, rule.all_tokens + prompt + granted)
  tightest(rule.li, rule.all_in + prompt)
  tightest(rule.lo, rule.all_out + granted)
  see(rule.lc, rule.all_cost + cost)
  if share >= rule.warn then filled[#filled + 1] = rule.index .. ':' .. share end
end

redis.call('ZADD', KEYS[1], now + lease, id)
redis.call('HSET', KEYS[2], id, cmsgpack.pack({ prompt, granted, cost, counters, flying }))
return string.format('Y %.0f %.0f %d %d %.0f %d %.0f ', now, granted, clamp,
  request_index, request_left, token_index, token_left) .. table.concat(filled, ' ')
