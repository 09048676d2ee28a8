-- Adds to the lists of one epoch, and says so in the record, in one step.
--
-- KEYS: samples, letters, records of the place, all places, lists to delete ...
-- ARGV: length that each list must have, place, run, record ('' while the epoch is not complete),
--       seconds that an incomplete epoch is kept, number of batches of samples, then these batches
--       and those of letters
--
-- Returns 0, and does nothing, where a list is not as long as the caller left it: Redis has lost it.

if redis.call('LLEN', KEYS[1]) ~= tonumber(ARGV[1]) then return 0 end
if redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[2]) then return 0 end

local num_sample_batches = tonumber(ARGV[7])
for i = 8, #ARGV do
  local list = i < 8 + num_sample_batches and KEYS[1] or KEYS[2]
  redis.call('RPUSH', list, ARGV[i])
end

local place, run, record = ARGV[3], ARGV[4], ARGV[5]
if record == '' then
  redis.call('EXPIRE', KEYS[1], ARGV[6])
  redis.call('EXPIRE', KEYS[2], ARGV[6])
else
  redis.call('PERSIST', KEYS[1])
  redis.call('PERSIST', KEYS[2])
  redis.call('HSET', KEYS[3], run, record)
  redis.call('SADD', KEYS[4], place)
  for i = 5, #KEYS do redis.call('DEL', KEYS[i]) end
end
return 1
