// Package osmemory gets memory and file mappings from the operating system.
//
// Map returns zeroed memory outside the Go heap, and Unmap frees it. Lock keeps such memory from being
// swapped out, until it is unmapped; LockLimit names the limit because of which Lock may fail. Seal
// makes the memory unreadable. MapFile maps a file for reading, and UnmapFile ends the mapping. On
// systems without mappings Map takes memory from the Go heap, and Lock and MapFile fail with
// [errors.ErrUnsupported].
package osmemory
