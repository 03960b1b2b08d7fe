// Package osmemory gets memory and file mappings from the operating system.
//
// Map returns zeroed memory outside the Go heap, and Unmap gives it back. Lock
// keeps such memory from being swapped out, until it is unmapped; LockLimit says
// which limit may refuse that. Seal makes it unreadable. MapFile maps a file to read it, and UnmapFile ends
// the mapping. On systems without mappings Map takes memory from the Go heap, and
// Lock and MapFile fail with [errors.ErrUnsupported].
package osmemory
