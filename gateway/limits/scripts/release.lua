
-- release: free the claims ARGV[1..] of a process that is known to be dead, as if their leases had expired.
-- Returns how many there were.
local released = 0
for i = 1, #ARGV do
  local packed = finish(ARGV[i])
  if packed then
    redis.call('SET', KEYS[2] .. ':late:' .. ARGV[i], packed, 'PX', DAY)
    released = released + 1
  end
end
return released
