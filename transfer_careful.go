package nwt

import (
	"errors"
	"fmt"
)

// A careful device turns panics of the device beneath it into errors: that device may be
// the program's, and the loader calls it in goroutines of its own.
type careful struct {
	Device
	name string // asked for once, in the goroutine that makes the loader: the device may end it
}

func newCareful(d Device) (c careful) {
	c = careful{d, fmt.Sprintf("%T", d)}
	defer caught(new(error))
	c.name = d.String()
	return c
}

func (d careful) String() string { return d.name }

func (d careful) AllocHost(size int) (mem []byte, err error) {
	defer caught(&err)
	if mem, err = d.Device.AllocHost(size); err == nil && len(mem) < size {
		return nil, errors.Join(fmt.Errorf("AllocHost returned only %d bytes", len(mem)), d.Device.FreeHost(mem))
	}
	return mem, err
}

func (d careful) FreeHost(mem []byte) (err error) {
	defer caught(&err)
	return d.Device.FreeHost(mem)
}

func (d careful) Alloc(size int) (ptr uintptr, err error) {
	defer caught(&err)
	return d.Device.Alloc(size)
}

func (d careful) Free(ptr uintptr) (err error) {
	defer caught(&err)
	return d.Device.Free(ptr)
}

func (d careful) NewEvent() (event uintptr, err error) {
	defer caught(&err)
	return d.Device.NewEvent()
}

func (d careful) FreeEvent(event uintptr) (err error) {
	defer caught(&err)
	return d.Device.FreeEvent(event)
}

func (d careful) Open() (s Session, err error) {
	defer caught(&err)
	if s, err = d.Device.Open(); err == nil && s == nil {
		return nil, errors.New("Open returned no session")
	}
	return carefulSession{s}, err
}

type carefulSession struct{ Session }

func (s carefulSession) Copy(parts []Copy, event uintptr) (err error) {
	defer caught(&err)
	return s.Session.Copy(parts, event)
}

func (s carefulSession) Wait(event uintptr) (err error) {
	defer caught(&err)
	return s.Session.Wait(event)
}

func (s carefulSession) WaitEvent(event uintptr) (err error) {
	defer caught(&err)
	return s.Session.WaitEvent(event)
}

func (s carefulSession) WaitStream(stream uintptr) (err error) {
	defer caught(&err)
	return s.Session.WaitStream(stream)
}

func (s carefulSession) Close() (err error) {
	defer caught(&err)
	return s.Session.Close()
}
