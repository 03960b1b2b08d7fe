package driver_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
)

// An accelerator is the smallest device there can be: its memory is a Go slice,
// an address is a place in it, and its copies are done when they are asked for,
// so that an event has always come.
type accelerator struct {
	mu     sync.Mutex
	memory []byte
	used   int
}

func (a *accelerator) String() string { return "accelerator" }

func (a *accelerator) AllocHost(size int) ([]byte, error) { return make([]byte, size), nil }

func (a *accelerator) FreeHost([]byte) error { return nil }

func (a *accelerator) Alloc(size int) (uintptr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if size > len(a.memory)-a.used {
		return 0, fmt.Errorf("%d of %d bytes are free", len(a.memory)-a.used, len(a.memory))
	}
	a.used += size
	return uintptr(a.used - size), nil
}

func (a *accelerator) Free(uintptr) error { return nil } // all goes when the process does

func (a *accelerator) NewEvent() (uintptr, error) { return 0, nil }

func (a *accelerator) FreeEvent(uintptr) error { return nil }

func (a *accelerator) Open() (driver.Session, error) { return copying{a}, nil }

type copying struct{ *accelerator }

func (c copying) Copy(parts []driver.Copy, _ uintptr) error {
	for _, p := range parts {
		copy(c.memory[p.Dst:], p.Src)
	}
	return nil
}

func (c copying) Wait(uintptr) error { return nil }
func (c copying) Close() error       { return nil }

func Example() {
	var schema nwt.Schema
	square := nwt.AddField[uint8](&schema, "square")
	squares := nwt.NewDataset(8, schema.Fields(), func(_ context.Context, i int, dst *nwt.Sample) error {
		square.Of(dst)[0] = uint8(i * i)
		return nil
	})
	dev := &accelerator{memory: make([]byte, 4<<10)}
	loader, err := nwt.NewLoader(squares, nwt.WithBatchSize(3), nwt.WithDevice(dev))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		at := square.DevicePtr(batch)
		fmt.Println(dev.memory[at : at+uintptr(batch.Len())])
	}
	// Output:
	// [0 1 4]
	// [9 16 25]
	// [36 49]
}
