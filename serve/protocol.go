package serve

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/nwt-go/nwt"
)

// A Ticket asks for a batch: the Batch-th that a rank gets of an epoch, or after a state.
type Ticket struct {
	Epoch   int    `json:"epoch"`
	Batch   int    `json:"batch"`
	Rank    int    `json:"rank"`
	World   int    `json:"world"`             // 0 stands for 1
	Samples int    `json:"samples,omitempty"` // of the state
	Order   uint64 `json:"order,omitempty,string"`
}

const (
	maxTicket  = 1 << 20 // bytes
	maxWorld   = 1 << 20
	maxPlans   = 64 // ranks whose order a server remembers
	maxTickets = 10_000
)

// parseTicket reads a ticket of any client.
func parseTicket(b []byte) (t Ticket, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err = d.Decode(&t); err != nil {
		return t, fmt.Errorf("a ticket is JSON such as {\"epoch\": 0, \"batch\": 0, \"rank\": 0, \"world\": 1}: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return t, fmt.Errorf("something follows the ticket")
	}
	if t.World == 0 {
		t.World = 1
	}
	if t.World < 1 || t.World > maxWorld || t.Rank < 0 || t.Rank >= t.World {
		return t, fmt.Errorf("rank %d of %d: the world must be 1 … %d and the rank below it", t.Rank, t.World, maxWorld)
	}
	return t, nil
}

// placesMagic begins a ticket of package serve's own client, which asks for samples by their
// places: 32 bytes each.
const placesMagic = "nwt places 1"

func appendPlaces(b []byte, places []nwt.Place) []byte {
	b = append(b, placesMagic...)
	for _, p := range places {
		for _, v := range [...]uint64{uint64(p.Index), uint64(p.Position), uint64(p.Epoch), p.Key} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return b
}

// parsePlaces reads what appendPlaces wrote; isPlaces is false of other tickets.
func parsePlaces(dst []nwt.Place, b []byte) (places []nwt.Place, isPlaces bool, err error) {
	b, isPlaces = bytes.CutPrefix(b, []byte(placesMagic))
	if !isPlaces {
		return dst, false, nil
	}
	if len(b)%32 != 0 || len(b) == 0 {
		return dst, true, fmt.Errorf("places take 32 bytes each: %d bytes", len(b))
	}
	for ; len(b) > 0; b = b[32:] {
		v := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
		dst = append(dst, nwt.Place{Index: int(v(0)), Position: int(v(1)), Epoch: int(v(2)), Key: v(3)})
	}
	return dst, true, nil
}

// An answer goes before a batch, as the metadata of its message.
type answer struct {
	Server  string     `json:"server"`
	Data    string     `json:"data"`            // the dataset's identity
	Order   string     `json:"order,omitempty"` // that of its batches
	After   *nwt.State `json:"after,omitempty"` // the state after the batch; nil: places were asked for
	Left    int        `json:"left"`            // batches of the epoch that follow
	Samples int        `json:"samples"`         // of the batch
	Shapes  [][]int    `json:"shapes,omitempty"`
}

// A description is what a server tells of its dataset, as the metadata of a FlightInfo.
type description struct {
	Server  string      `json:"server"`
	Data    string      `json:"data"`
	Order   string      `json:"order"`
	Samples int         `json:"samples"` // of the dataset
	Batches int         `json:"batches"` // of an epoch, on this rank
	Batch   int         `json:"batch"`   // samples of the largest batch
	Fields  []nwt.Field `json:"fields"`
	Sized   bool        `json:"sized"`
}

// identityOf tells a dataset from others.
func identityOf(ds nwt.Dataset, n int) string {
	fields, _ := json.Marshal(ds.Fields()) // of names and numbers
	own := ""
	if f, ok := ds.(nwt.Fingerprinter); ok {
		own = f.Fingerprint()
	}
	return hashOf(n, string(fields), own)
}

func hashOf(what ...any) string {
	sum := sha256.Sum256(fmt.Append(nil, what...))
	return fmt.Sprintf("%x", sum[:8])
}
