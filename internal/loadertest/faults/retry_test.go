package faults_test

import (
	"context"
	sql "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/driver"
	"github.com/nwt-go/nwt/internal/loadertest/kit"
)

// often loads one sample that always fails with err, and returns how often it was tried, and the
// epoch's error.
func often(t *testing.T, err error, opts ...nwt.Option) (tries int, ends error) {
	t.Helper()
	ds := kit.Numbered(1, func(context.Context, int, *nwt.Sample) error {
		tries++
		return err
	})
	_, ends = kit.Epoch(t.Context(), kit.NewLoader(t, ds, append([]nwt.Option{nwt.WithWorkers(1), nwt.WithRetry(2, 0)}, opts...)...), 0)
	require.ErrorIs(t, ends, err)
	return tries, ends
}

type status int

func (s status) Error() string       { return fmt.Sprintf("status %d", int(s)) }
func (s status) HTTPStatusCode() int { return int(s) }

// sqlState is an error of a database.
type sqlState string

func (s sqlState) Error() string    { return "state " + string(s) }
func (s sqlState) SQLState() string { return string(s) }

// firmly is an error that says that it will stay.
type firmly struct{ error }

func (firmly) Temporary() bool { return false }
func (f firmly) Unwrap() error { return f.error }

func TestAnErrorTellsWhetherItIsTemporary(t *testing.T) {
	for _, c := range []struct {
		err              error
		temporary, known bool
	}{
		{nil, false, true},
		{nwt.Retryable(errors.New("full")), true, true},
		{fmt.Errorf("reading: %w", io.ErrUnexpectedEOF), true, true},
		{fs.ErrNotExist, false, true},
		{errors.New("odd"), false, false},
	} {
		temporary, known := driver.Temporary(c.err)
		require.Equal(t, []bool{c.temporary, c.known}, []bool{temporary, known}, "%v", c.err)
	}
}

func TestFaultsThatMayPassAreRepeatedAndOthersAreNot(t *testing.T) {
	read := func(err error) error {
		return &net.OpError{Op: "read", Net: "tcp", Err: &net.OpError{Op: "inner", Err: err}}
	}
	for _, err := range []error{
		read(syscall.ECONNRESET), read(syscall.ECONNREFUSED), read(syscall.EPIPE), read(syscall.ETIMEDOUT), read(syscall.EHOSTUNREACH),
		&fs.PathError{Op: "read", Path: "nfs", Err: syscall.ESTALE}, &fs.PathError{Op: "read", Path: "nfs", Err: syscall.EIO},
		io.ErrUnexpectedEOF, fmt.Errorf("body: %w", io.ErrUnexpectedEOF), &url.Error{Op: "Get", Err: io.EOF},
		context.DeadlineExceeded, status(503), status(429), status(408), busyError{}, &net.DNSError{IsTimeout: true},
		nwt.Retryable(errors.New("503")), fmt.Errorf("photo: %w", nwt.Retryable(fs.ErrNotExist)),
		errors.Join(errors.New("photo"), read(syscall.ECONNRESET)),
		sqlState("08006"), fmt.Errorf("row 7: %w", sqlState("40001")), sqlState("53300"), sqlState("57P01"), fmt.Errorf("query: %w", sql.ErrBadConn),
	} {
		tries, ends := often(t, err)
		require.Equal(t, 3, tries, "%v", err)
		require.ErrorContains(t, ends, err.Error()+" (attempt 3)")
	}
	for _, err := range []error{
		fs.ErrNotExist, fs.ErrPermission, io.EOF, status(404), status(400), &url.Error{Op: "Get", Err: context.Canceled},
		firmly{io.ErrUnexpectedEOF}, firmly{nwt.Retryable(io.EOF)}, sqlState("42P01"), sqlState("57014"), sqlState("23505"), &net.DNSError{IsNotFound: true}, errors.New("no picture"),
	} {
		tries, ends := often(t, err)
		require.Equal(t, 1, tries, "%v", err)
		require.NotContains(t, ends.Error(), "attempt")
	}
	require.NoError(t, nwt.Retryable(nil))
}

func TestWhoAsksForRepetitionsIsToldWhyThereAreNone(t *testing.T) {
	_, ends := often(t, errors.New("503"))
	require.ErrorContains(t, ends, "503 (not repeated: if it is temporary, wrap it in nwt.Retryable)")
	_, ends = often(t, fs.ErrNotExist)
	require.NotContains(t, ends.Error(), "repeated")
	bad := errors.New("bad")
	_, ends = kit.Epoch(t.Context(), kit.NewLoader(t, kit.Numbered(1, func(context.Context, int, *nwt.Sample) error { return bad })), 0)
	require.NotContains(t, ends.Error(), "repeated")
}

// A server of an ordinary program fails in each ordinary way once per picture.
func TestALoadOverHTTPBearsAServerThatResetsRefusesAndCuts(t *testing.T) {
	picture := make([]byte, 100_000)
	seen := map[string]int{} // of the one worker's requests
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen[r.URL.Path]++
		hijack := func() *net.TCPConn {
			c, _, err := w.(http.Hijacker).Hijack()
			require.NoError(t, err)
			return c.(*net.TCPConn)
		}
		switch seen[r.URL.Path] {
		case 1: // hangs up
			hijack().Close()
		case 2: // cuts its answer
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write(picture[:50_000])
		case 3: // resets the connection
			c := hijack()
			_ = c.SetLinger(0)
			c.Close()
		case 4: // resets it within the answer
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write(picture[:50_000])
			c := hijack()
			_ = c.SetLinger(0)
			c.Close()
		default:
			_, _ = w.Write(picture)
		}
	}))
	defer server.Close()
	client := server.Client()
	ds := kit.Numbered(4, func(ctx context.Context, i int, dst *nwt.Sample) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/%d", server.URL, i), nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		data, err := io.ReadAll(answer.Body)
		if err == nil && len(data) != len(picture) {
			err = fmt.Errorf("%d bytes", len(data))
		}
		return err
	})
	got, err := kit.Values(t, kit.NewLoader(t, ds, nwt.WithWorkers(1), nwt.WithRetry(4, 0)), 0)
	require.NoError(t, err)
	require.Equal(t, kit.UpTo(4), got)

	server.Close() // refuses
	_, err = kit.Values(t, kit.NewLoader(t, ds, nwt.WithWorkers(1), nwt.WithRetry(2, 0)), 0)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "(attempt 3)")
}

func TestASampleOrShardThatIsGivenUpTellsItsLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := nwt.Retryable(errors.New("503"))
		opts := []nwt.Option{nwt.WithWorkers(1), nwt.WithBatchSize(1), nwt.WithTimeout(30 * time.Second), nwt.WithRetry(5, time.Second), nwt.WithErrorBudget(4)}
		var opened atomic.Int32
		ds := kit.Numbered(3, func(ctx context.Context, i int, _ *nwt.Sample) error {
			switch {
			case i == 0:
				return failed
			case i == 1:
				_ = kit.Heed(t.Context(), time.Minute)
			}
			return nil
		})
		l := kit.NewLoader(t, ds, opts...)
		_, err := kit.Epoch(t.Context(), l, 0)
		require.NoError(t, err)
		bad := l.BadSamples()
		require.Len(t, bad, 2)
		require.ErrorIs(t, bad[0], context.DeadlineExceeded)
		require.ErrorIs(t, bad[0], failed)
		require.ErrorContains(t, bad[0], "no answer within WithTimeout(30s): context deadline exceeded; the last error: 503 (attempt 5)")
		require.NotContains(t, bad[1].Error(), "503")

		s := &kit.Breaking{Shelves: kit.NewShelves(1), OnOpen: func(int) error {
			if opened.Add(1) > 2 {
				_ = kit.Heed(t.Context(), time.Minute)
			}
			return failed
		}}
		_, err = kit.Epoch(t.Context(), kit.NewLoader(t, nwt.Streamed(s), append(opts, nwt.WithErrorBudget(0))...), 0)
		require.ErrorContains(t, err, "the last error: it can't be opened: 503 (attempt 2)")
		s = &kit.Breaking{Shelves: kit.NewShelves(1)} // the other may still be read
		s.OnOpen, s.OnNext = func(int) error {
			if opened.Add(1) < 6 {
				return failed
			}
			return nil
		}, func(int, int) error { return kit.Heed(t.Context(), time.Minute) }
		_, err = kit.Epoch(t.Context(), kit.NewLoader(t, nwt.Streamed(s), append(opts, nwt.WithErrorBudget(0))...), 0)
		require.ErrorContains(t, err, "the last error: it can't be opened: 503 (attempt 2)")
	})
}

func TestWhatCallsItselfTemporaryIsLoadedAgain(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var tries sync.Map
		ds := kit.Numbered(20, func(_ context.Context, i int, dst *nwt.Sample) error {
			n, _ := tries.LoadOrStore(i, new(atomic.Int32))
			if i%5 == 0 && n.(*atomic.Int32).Add(1) <= 2 {
				return busyError{}
			}
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithRetry(2, time.Microsecond))
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, kit.UpTo(20), got)
	}
}

func TestTheWaitBeforeARepetitionDoublesEachTime(t *testing.T) {
	for _, workers := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var loaded, opened []time.Duration
			ds := kit.Numbered(1, func(context.Context, int, *nwt.Sample) error {
				loaded = append(loaded, time.Since(began))
				return busyError{}
			})
			s := &kit.Breaking{Shelves: kit.NewShelves(1), OnOpen: func(int) error {
				opened = append(opened, time.Since(began))
				return busyError{}
			}}
			for _, ds := range []nwt.Dataset{ds, nwt.Streamed(s)} {
				began = time.Now()
				_, err := kit.Epoch(t.Context(), kit.NewLoader(t, ds, nwt.WithWorkers(workers), nwt.WithRetry(4, time.Second)), 0)
				require.ErrorIs(t, err, busyError{})
			}
			at := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second}
			require.Equal(t, at, loaded)
			require.Equal(t, at, opened)
		})
	}
}

func TestASampleThatStaysTemporarilyBadIsBad(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var tries atomic.Int32
		ds := kit.Numbered(20, func(_ context.Context, i int, _ *nwt.Sample) error {
			if i == 7 {
				tries.Add(1)
				return busyError{}
			}
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithRetry(2, time.Microsecond), nwt.WithErrorBudget(1), kit.Silent)
		got, err := kit.Values(t, l, 0)
		require.NoError(t, err)
		require.Equal(t, kit.UpTo(20, 7), got)
		require.EqualValues(t, 1+2, tries.Load())
		require.ErrorIs(t, l.BadSamples()[0], busyError{})
	}
}

// What attempts that failed have written isn't part of the sample.
func TestASampleIsClearedBeforeEachAttempt(t *testing.T) {
	for _, workers := range []int{0, 2} {
		var tries [20]atomic.Int32
		ds := nwt.NewDataset(20, kit.Scalar, func(_ context.Context, i int, dst *nwt.Sample) error {
			if tries[i].Add(1) <= 2 {
				nwt.Values[float32](dst, 0)[0] = 7
				return busyError{}
			}
			return nil
		})
		l := kit.NewLoader(t, ds, nwt.WithBatchSize(4), nwt.WithWorkers(workers), nwt.WithRetry(2, time.Microsecond))
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.Equal(t, make([]float32, 4), nwt.Values[float32](b, 0))
		}
	}
}

// A repetition begins as the first attempt did.
func TestASampleThatIsLoadedAgainIsTheSameAsAtOnce(t *testing.T) {
	drawn := func(fails bool) (all []float64) {
		first := true
		ds := &kit.Pages{N: 4, OnLoad: func(_ context.Context, i int, dst *nwt.Sample) error {
			draw := dst.Rand().Float64()
			if i == 2 && fails && first {
				first = false
				dst.SetLen(1, 3)
				return busyError{}
			}
			require.Equal(t, -1, dst.Len(1, 0))
			all = append(all, draw)
			return nil
		}}
		l := kit.NewLoader(t, oneByOne{ds}, nwt.WithWorkers(0), nwt.WithRetry(1, time.Microsecond))
		requirePages(t, l, 0)
		return all
	}
	require.Equal(t, drawn(false), drawn(true))
}
