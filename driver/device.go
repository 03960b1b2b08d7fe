// Package driver is for code that implements or uses a device, a server or a store. A program that only
// trains doesn't need it. Anything in it may change.
//
// An implementation of [nwt.Device] makes a [Session], which copies batches to the device.
//
// A server that loads batches for other processes, as module serve does, gets a [Source] from Loader.Serving
// of package nwt. For each batch that a client asks for, the server asks the Source which samples the batch
// has. Then the server lets the Source load them, and sends the result.
//
// A dataset that reads from a store asks [Temporary] which errors are temporary. It asks [TimeoutOf] how long
// its requests may take. Module objects has such datasets.
//
// [nwt.Device]: https://pkg.go.dev/github.com/nwt-go/nwt#Device
package driver

// A Session is a queue of copies to a device, for one loader. Its methods are called one at a time, but not
// always on the same OS thread. After a method returns an error, the loader closes the session, and the next
// epoch opens another. Whenever an epoch ends, the loader waits for the queued copies.
type Session interface {
	// Copy begins to copy parts to device memory, and returns without waiting. It records the given event behind
	// the copies. It must not keep the slice. The memory of the parts stays valid until the copies have ended.
	Copy(parts []Copy, event uintptr) error
	// Wait blocks, without spinning, until the device has reached the event.
	Wait(event uintptr) error
	// Close waits for all queued copies and ends the session. It is called once. If it returns an error,
	// copies that the loader hasn't waited for may still be under way. The loader then neither uses nor frees
	// their memory.
	Close() error
}

// A Copy is one copy from host memory, Src, to device memory, Dst.
type Copy struct {
	Dst uintptr
	Src []byte
}
