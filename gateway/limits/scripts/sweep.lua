
-- sweep: free up to ARGV[1] expired leases. Returns how many.
return free_expired(now_ms(), tonumber(ARGV[1]))
