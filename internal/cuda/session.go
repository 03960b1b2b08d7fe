package cuda

import (
	"errors"

	"github.com/nwt-go/nwt/driver"
)

// A session is a queue of copies to one device. Its context is current on a thread only while a method
// runs. So the goroutine needn't keep an OS thread; each switch to such a thread would cost 17 µs. Events
// are the driver's handles, CUevents.
type session struct {
	dev    *Device
	ctx    uintptr
	stream uintptr // runs the copies in order; it doesn't wait for the default stream
}

// Open opens a session.
func (d *Device) Open() (driver.Session, error) {
	ctx, err := d.retain()
	if err != nil {
		return nil, err
	}
	s := &session{dev: d, ctx: ctx}
	err = s.do(func() (err error) {
		var r Result
		s.stream, r = d.drv.newStream()
		return check("cuStreamCreate", r)
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// do calls f on one thread, with the session's context current on that thread.
func (s *session) do(f func() error) error { return within(s.dev.drv, s.ctx, f) }

// Copy implements driver.Session. If a source isn't page-locked memory, it may be read, more slowly,
// before Copy returns.
func (s *session) Copy(parts []driver.Copy, event uintptr) error {
	return s.do(func() error {
		for _, p := range parts {
			if len(p.Src) == 0 {
				continue
			}
			if err := check("cuMemcpyHtoDAsync_v2", s.dev.drv.copyAsync(p.Dst, p.Src, s.stream)); err != nil {
				return err
			}
		}
		return check("cuEventRecord", s.dev.drv.record(event, s.stream))
	})
}

// Wait implements driver.Session.
func (s *session) Wait(event uintptr) error {
	return s.do(func() error { return check("cuEventSynchronize", s.dev.drv.syncEvent(event)) })
}

// Close implements driver.Session.
func (s *session) Close() error {
	var err error
	if s.stream != 0 {
		err = s.dev.insist(func() error {
			return errors.Join(check("cuStreamSynchronize", s.dev.drv.syncStream(s.stream)), check("cuStreamDestroy_v2", s.dev.drv.destroyStream(s.stream)))
		})
	}
	return errors.Join(err, s.dev.release())
}
