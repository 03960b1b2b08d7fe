package cuda

import (
	"errors"
)

// Session is a stream of copies to one device. It belongs to one OS thread, from
// Device.Session to Close or from Enter to Leave: the caller locks the thread
// (runtime.LockOSThread) and calls every method there. A session that is opened
// later on the same thread must be closed, or leave, before this one is used
// again. Events are the driver's handles, CUevents, that other libraries can
// wait for.
type Session struct {
	dev    *Device
	drv    driver
	ctx    uintptr
	stream uintptr // the copies, in order
	mark   uintptr // the event with which the stream waits for other streams
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
	if s.mark, err = s.NewEvent(); err != nil {
		return nil, errors.Join(err, s.Close())
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
	if s.mark != 0 {
		errs = append(errs, s.FreeEvent(s.mark))
	}
	errs = append(errs, check("cuCtxPopCurrent_v2", s.drv.pop()), s.dev.release())
	return errors.Join(errs...)
}

// NewEvent returns an event that measures no time. An event that was never
// recorded counts as done.
func (s *Session) NewEvent() (uintptr, error) {
	ev, r := s.drv.newEvent()
	return ev, check("cuEventCreate", r)
}

// FreeEvent frees an event. Work that waits for it still does.
func (s *Session) FreeEvent(ev uintptr) error {
	return check("cuEventDestroy_v2", s.drv.destroyEvent(ev))
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

// WaitEvent makes later copies wait, on the device, for what ev stands for now.
func (s *Session) WaitEvent(ev uintptr) error {
	return check("cuStreamWaitEvent", s.drv.waitEvent(s.stream, ev))
}

// WaitStream makes later copies wait, on the device, for everything that is
// queued now on another stream of the same context, a CUstream. 0 is the
// default stream.
func (s *Session) WaitStream(stream uintptr) error {
	if err := check("cuEventRecord", s.drv.record(s.mark, stream)); err != nil {
		return err
	}
	return s.WaitEvent(s.mark)
}
