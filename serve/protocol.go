package serve

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nwt-go/nwt"
)

// version is that of what clients and servers say to each other. Servers check it.
const version = 3

// differs returns an error unless a server and a client speak the same version.
func differs(server string, servers, client int) error {
	older := "nwt where the client runs"
	if servers < client {
		older = server
	}
	if servers == client {
		return nil
	}
	return fmt.Errorf("the client speaks version %d, %s version %d: update %s", client, server, servers, older)
}

// A ticket asks for one batch: number Batch of a rank's epoch, or number Batch after a state. Package
// serve's own client instead asks for samples of a dataset by their places.
type ticket struct {
	Version int    `json:"version,omitempty"` // 0: not said
	Epoch   int    `json:"epoch"`
	Batch   int    `json:"batch"`
	Rank    int    `json:"rank"`
	World   int    `json:"world"`             // 0 stands for 1
	Samples int    `json:"samples,omitempty"` // of the state
	Order   uint64 `json:"order,omitempty,string"`
	Partial bool   `json:"partial,omitempty"` // bad samples are left out and told; otherwise one is an error

	Data   string   `json:"data,omitempty"` // the dataset's identity
	Key    uint64   `json:"key,omitempty,string"`
	Places [][2]int `json:"places,omitempty"` // index and position of each sample
}

const (
	maxTicket = 1 << 20       // bytes
	maxPlaces = 1 << 14       // of a ticket, which then fits
	maxBody   = 1<<31 - 1<<20 // bytes of a batch in one message: clients of gRPC take 2 GiB
)

func parseTicket(b []byte) (t ticket, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err = d.Decode(&t); err != nil {
		return t, fmt.Errorf("a ticket is JSON such as {\"epoch\": 0, \"batch\": 0, \"rank\": 0, \"world\": 1}: %w", err)
	}
	t.World = cmp.Or(t.World, 1)
	return t, nil
}

// An answer goes before a batch, as the metadata of its message.
type answer struct {
	Server  string      `json:"server"`
	Data    string      `json:"data"`            // the dataset's identity
	Order   string      `json:"order,omitempty"` // that of its batches
	After   *nwt.State  `json:"after,omitempty"` // the state after the batch; nil: places were asked for
	Left    int         `json:"left"`            // batches of the epoch that follow
	Samples int         `json:"samples"`         // of the batch
	Shapes  [][]int     `json:"shapes"`          // of a sample's fields
	At      []int       `json:"at"`              // where in the body each column begins, those of lengths last
	Bad     []badSample `json:"bad,omitempty"`
}

// A badSample is one that a batch lacks.
type badSample struct {
	Index    int    `json:"index"`
	Position int    `json:"position"` // see nwt.LoadError
	Error    string `json:"error"`
}

// A description is what a server tells of its dataset.
type description struct {
	Server  string          `json:"server"`
	Data    string          `json:"data"`
	Order   string          `json:"order"`
	Samples int             `json:"samples"` // of the dataset
	Batches int             `json:"batches"` // of an epoch, on this rank
	Batch   int             `json:"batch"`   // samples of the largest batch
	Bytes   int             `json:"bytes"`   // of the largest batch; 0: samples tell their sizes, so that it isn't known
	Fields  []nwt.Field     `json:"fields"`
	Sized   bool            `json:"sized"`
	About   json.RawMessage `json:"about,omitempty"`  // of WithAbout
	Result  string          `json:"result,omitempty"` // of WithTuning
	Figures *nwt.Result     `json:"figures,omitempty"`
	Workers int             `json:"workers"` // samples loaded at a time

	Fingerprint string `json:"fingerprint,omitempty"` // of the dataset, cut
}

// dataset says what a dataset is, so that two that should be equal can be compared.
func (d *description) dataset() string {
	text := fmt.Appendf(nil, "the dataset %s (%d samples", d.Data, d.Samples)
	for _, f := range d.Fields {
		text = fmt.Appendf(text, ", %s %v %v", f.Name, f.Type, f.Shape)
	}
	if d.Sized {
		text = append(text, ", sizes are told"...)
	}
	return fmt.Sprintf("%.1024s, fingerprint %q)", text, d.Fingerprint)
}

func hashOf(what ...any) string {
	sum := sha256.Sum256(fmt.Append(nil, what...))
	return fmt.Sprintf("%x", sum[:8])
}

// said is what an error says to clients, in at most so many bytes and the code of an nwt.ArgumentError:
// "reason [code]".
func said(err error, most int) string {
	text := strings.ToValidUTF8(err.Error(), "�")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	if argument, ok := errors.AsType[*nwt.ArgumentError](err); ok && argument.Code != "" {
		text += " [" + argument.Code + "]"
	}
	return text
}

const maxSaid = 2600 // bytes, each three in a header of HTTP: clients take 8 kB
