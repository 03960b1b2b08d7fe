// Package device is what a writer of an [nwt.Device] implements: the copies to it.
//
// [nwt.Device]: https://pkg.go.dev/github.com/nwt-go/nwt#Device
package device

// A Session is a queue of copies to a device, for one loader. Its methods are
// called one at a time, but not always on the same OS thread. After any method
// returns an error, the loader closes the session, and the next epoch opens
// another. The end of an epoch, however it ends, waits for what is queued.
type Session interface {
	// Copy queues copies to device memory, makes event stand for their end, and
	// doesn't wait. It must not keep the slice parts; the memory that the parts point
	// to stays valid.
	Copy(parts []Copy, event uintptr) error
	// Wait blocks, without spinning, until the point that event stands for is
	// reached.
	Wait(event uintptr) error
	// Close waits for all that is queued and ends the session. It is called once. If
	// it returns an error, copies that the loader hasn't waited for may still be under
	// way: the loader then neither uses nor frees the memory that they touch.
	Close() error
}

// A Copy is one copy from host memory, Src, to device memory, Dst.
type Copy struct {
	Dst uintptr
	Src []byte
}
