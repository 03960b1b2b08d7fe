package cuda

import (
	"errors"
)

// Session is a stream of copies to one device. It belongs to one OS thread, from
// Device.Session to Close or from Enter to Leave: the caller locks the thread
// (runtime.LockOSThread) and calls every method there. A session that is opened
// later on the same thread must be closed, or leave, before this one is used
// again. Events are the driver's handles, CUevents.
type Session struct {
	dev    *Device
	drv    driver
	ctx    uintptr
	stream uintptr // the copies, in order
	closed bool
}

// Session makes the device's context current on the calling thread and opens a
// stream there that doesn't wait for the default stream.
func (d *Device) Session() (*Session, error) {
	ctx, err := d.retain()
	if err != nil {
		return nil, err
	}
	if err := check("cuCtxPushCurrent_v2", d.drv.push(ctx)); err != nil {
		return nil, errors.Join(err, d.release())
	}
	s := &Session{dev: d, drv: d.drv, ctx: ctx}
	var r Result
	if s.stream, r = s.drv.newStream(); r != Success {
		return nil, errors.Join(check("cuStreamCreate", r), s.Close())
	}
	return s, nil
}

// Leave restores the context that was current on the thread before the session.
// After it the session can go on elsewhere, with Enter.
func (s *Session) Leave() error { return check("cuCtxPopCurrent_v2", s.drv.pop()) }

// Enter makes the device's context current on the calling thread, after Leave.
func (s *Session) Enter() error { return check("cuCtxPushCurrent_v2", s.drv.push(s.ctx)) }

// Close waits for all copies and gives back what the session itself opened. The
// caller must free its events before. Close restores the context that was current on
// the thread before the session. If it returns an error, copies may still be under way.
func (s *Session) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	if s.stream != 0 {
		errs = append(errs, check("cuStreamSynchronize", s.drv.syncStream(s.stream)), check("cuStreamDestroy_v2", s.drv.destroyStream(s.stream)))
	}
	errs = append(errs, check("cuCtxPopCurrent_v2", s.drv.pop()), s.dev.release())
	return errors.Join(errs...)
}

// Copy queues a copy of src to the device's memory at dst. Until an event that is
// recorded after the copy is done, src must not change and dst is undefined. If src
// isn't page-locked memory, it may instead be read, more slowly, before Copy
// returns.
func (s *Session) Copy(dst uintptr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return check("cuMemcpyHtoDAsync_v2", s.drv.copyAsync(dst, src, s.stream))
}

// Record makes ev stand for everything that was queued so far.
func (s *Session) Record(ev uintptr) error {
	return check("cuEventRecord", s.drv.record(ev, s.stream))
}

// Wait blocks the thread, without spinning, until ev is done.
func (s *Session) Wait(ev uintptr) error { return check("cuEventSynchronize", s.drv.syncEvent(ev)) }
