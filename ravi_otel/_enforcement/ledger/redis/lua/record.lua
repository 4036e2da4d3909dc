-- What is kept of an operation: a letter (L: it lives, S: so does a slot, P: it was settled at its grant because its process went silent,
-- R: it was given back for the same reason), how many accounts it has, and the number of its last extension; for each account what is
-- held, and what a release gives back of what was charged at once; where it was extended, what each was given last; then the accounts'
-- keys, with a space between.

local RECORD_BYTES, PART_BYTES, GIVEN_BYTES = 7, 16, 8

local function shape(accounts, extended)
  return '<c1HI4' .. string.rep('dd', accounts) .. (extended and string.rep('d', accounts) or '')
end

-- Take a record apart: its words, where an account's are at 2 * at + 2 (held) and 2 * at + 3 (given back), and its keys; nil where that
-- cannot be.
local function parts(record)
  if #record < RECORD_BYTES then return {} end
  local accounts, extended = byte(record, 2) + 256 * byte(record, 3), sub(record, 4, 7) ~= '\0\0\0\0'
  local length = RECORD_BYTES + accounts * (PART_BYTES + (extended and GIVEN_BYTES or 0))
  if #record < length then return {} end
  return {unpacked(shape(accounts, extended), record)}, sub(record, length + 1)
end
