package objects_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/objects"
)

// answering returns a server whose objects are read by f.
func answering(t *testing.T, f http.HandlerFunc) *server {
	t.Helper()
	s := newServer(t)
	s.Config.Handler = f
	return s
}

var length = []nwt.Field{{Name: "length", Type: nwt.Int64}}

func decodeLength(_ context.Context, _ string, data []byte, dst *nwt.Sample) error {
	nwt.Values[int64](dst, 0)[0] = int64(len(data))
	return nil
}

func TestAnObjectThatNeverEndsIsAnErrorAtItsBound(t *testing.T) {
	sent := make(chan int, 1)
	s := answering(t, func(w http.ResponseWriter, r *http.Request) {
		n := 0
		for r.Context().Err() == nil { // without a length
			m, err := w.Write(make([]byte, 64<<10))
			if n += m; err != nil {
				break
			}
		}
		sent <- n
	})
	var keys objects.Keys
	keys.Add("endless")
	ds, err := objects.New(s.bucket(t, 1), &keys, length, decodeLength, objects.WithMaxBytes(1<<20))
	require.NoError(t, err)
	_, err = nwt.LoadSample(t.Context(), ds, 0)
	var named *objects.Error
	require.ErrorAs(t, err, &named)
	require.False(t, named.Temporary())
	require.ErrorContains(t, err, `object "endless": too long: it has more than the 1048576 bytes that WithMaxBytes allows`)
	require.Less(t, <-sent, 20<<20)
}

func TestAnObjectThatIsTooLongIsNotRead(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	put(t, bucket, "long", make([]byte, 1000))
	var keys objects.Keys
	keys.Add("long")
	for most, want := range map[int64]string{999: "it has 1000 bytes, WithMaxBytes allows 999", 1000: ""} {
		ds, err := objects.New(bucket, &keys, length, decodeLength, objects.WithMaxBytes(most))
		require.NoError(t, err)
		sample, err := nwt.LoadSample(t.Context(), ds, 0)
		if want != "" {
			require.ErrorContains(t, err, want)
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, 1000, nwt.Values[int64](sample, 0)[0])
	}
	var index objects.Index
	index.Add("long", 0, 1000)
	_, err := objects.Packed(bucket, &index, length, decodeLength, objects.WithMaxBytes(999))
	require.ErrorContains(t, err, "a sample has 1000 bytes, WithMaxBytes allows 999")
	_, err = objects.New(bucket, &keys, length, decodeLength, objects.WithMaxBytes(0))
	require.ErrorContains(t, err, "WithMaxBytes: 0")
	_, err = objects.New(bucket, &keys, length, decodeLength, nil)
	require.ErrorContains(t, err, "options[0]: is nil")
}

func TestAStoreThatIgnoresRangesGivesNoOtherBytes(t *testing.T) {
	object := make([]byte, 100)
	for i := range object {
		object[i] = byte(i)
	}
	for name, endless := range map[string]bool{"all of the object": false, "and without end": true} {
		t.Run(name, func(t *testing.T) {
			s := answering(t, func(w http.ResponseWriter, r *http.Request) {
				if !endless {
					w.Header().Set("Content-Length", strconv.Itoa(len(object)))
				}
				_, _ = w.Write(object)
				for endless && r.Context().Err() == nil {
					if _, err := w.Write(object); err != nil {
						return
					}
				}
			})
			for _, part := range [][2]int64{{10, 20}, {0, 99}, {50, 50}, {1, 100}, {99, 1}} {
				var index objects.Index
				index.Add("a", part[0], part[1])
				ds, err := objects.Packed(s.bucket(t, 1), &index, length, decodeLength)
				require.NoError(t, err)
				_, err = nwt.LoadSample(t.Context(), ds, 0)
				var named *objects.Error
				require.ErrorAs(t, err, &named, part)
				require.False(t, named.Temporary())
			}
		})
	}
}

func TestAListThatGoesRoundIsAnError(t *testing.T) {
	for _, pages := range []int{1, 2, 7} {
		s := newServer(t)
		s.list = func(w http.ResponseWriter, r *http.Request) {
			from, _ := strconv.Atoi(r.URL.Query().Get("continuation-token"))
			w.Header().Set("Content-Type", "application/xml")
			fmt.Fprintf(w, `<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>`+
				`<Contents><Key>k%d</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>1</Size></Contents></ListBucketResult>`, from%pages+1, from)
		}
		_, err := objects.List(t.Context(), s.bucket(t, 1), "", nil)
		require.ErrorContains(t, err, "names a page twice")
	}
}

// FuzzAList: whatever a server says of what it has, List returns.
func FuzzAList(f *testing.F) {
	for _, page := range []string{
		"", "<", "<ListBucketResult/>",
		`<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>`,
		`<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken></ListBucketResult>`,
		`<ListBucketResult><Contents><Key>k</Key><Size>-7</Size></Contents><Contents><Key></Key></Contents><Contents/></ListBucketResult>`,
		`<?xml version="1.0"?><Error><Code>InternalError</Code></Error>`,
	} {
		f.Add(page)
	}
	f.Fuzz(func(t *testing.T, page string) {
		s := newServer(t)
		s.list = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/xml")
			_, _ = io.WriteString(w, page)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond) // for pages without end
		defer cancel()
		keys, err := objects.List(ctx, s.bucket(t, 1), "", nil)
		if err != nil {
			return
		}
		for i := range keys.Len() {
			_ = keys.At(i)
		}
	})
}

// half is a body that ends with an error that wraps io.EOF, as of a connection.
type half struct{ io.Reader }

func (h half) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("connection lost: %w", err)
	}
	return n, err
}

func (half) Close() error { return nil }

func TestAnErrorThatOnlyWrapsAnEndIsNone(t *testing.T) {
	s := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush() // so that there is no length
		_, _ = io.WriteString(w, "half")
	})
	s.wrap = func(body io.ReadCloser) io.ReadCloser { return half{body} }
	var keys objects.Keys
	keys.Add("a")
	ds, err := objects.New(s.bucket(t, 1), &keys, length, decodeLength)
	require.NoError(t, err)
	_, err = nwt.LoadSample(t.Context(), ds, 0)
	require.ErrorContains(t, err, "connection lost")
}
