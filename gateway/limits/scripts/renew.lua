
-- renew: extend leases that still exist. ARGV[1]: lease in milliseconds. ARGV[2..]: ids. Returns how many.
local expiry, lease, renewed = now_ms() + ARGV[1], tonumber(ARGV[1]), 0
for i = 2, #ARGV do
  local packed = redis.call('HGET', KEYS[2], ARGV[i])
  if packed then
    redis.call('ZADD', KEYS[1], expiry, ARGV[i])
    for _, key in ipairs(cmsgpack.unpack(packed)[GAUGES]) do redis.call('PEXPIRE', key, 3 * lease) end
    renewed = renewed + 1
  end
end
return renewed
