package objects_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/objects"
)

// raw answers with these bytes, whatever was asked for, and hangs up.
func raw(t *testing.T, answer string) *server {
	t.Helper()
	return answering(t, func(w http.ResponseWriter, _ *http.Request) {
		connection, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer connection.Close()
		_, _ = buffered.WriteString(answer)
		_ = buffered.Flush()
	})
}

// hundred is an object of which every part is different.
var hundred = func() (all []byte) {
	for i := range 100 {
		all = append(all, byte(i))
	}
	return all
}()

// loaded returns what sample 0 of a dataset of whole objects, or of parts of them, is made
// of.
func loaded(t *testing.T, ctx context.Context, s *server, part [2]int64, opts ...objects.Option) (data []byte, err error) {
	t.Helper()
	var ds nwt.Dataset
	decode := func(_ context.Context, _ string, all []byte, _ *nwt.Sample) error {
		data = bytes.Clone(all)
		return nil
	}
	if part[1] < 0 {
		var keys objects.Keys
		keys.Add("a")
		ds, err = objects.New(s.bucket(t, 1), &keys, length, decode, opts...)
	} else {
		var index objects.Index
		index.Add("a", part[0], part[1])
		ds, err = objects.Packed(s.bucket(t, 1), &index, length, decode, opts...)
	}
	require.NoError(t, err)
	_, err = nwt.LoadSample(ctx, ds, 0)
	return data, err
}

func TestAnAnswerThatLiesOfItsLengthOrRangeGivesNoOtherBytes(t *testing.T) {
	part, whole := [2]int64{10, 20}, [2]int64{0, -1}
	right := string(hundred[10:30])
	head := func(status int, lines ...string) string {
		return fmt.Sprintf("HTTP/1.1 %d x\r\nConnection: close\r\n%s\r\n", status, strings.Join(append(lines, ""), "\r\n"))
	}
	for name, c := range map[string]struct {
		part   [2]int64
		answer string
		want   string // "": it may load what is right
	}{
		"all that was asked for":         {part, head(206, "Content-Length: 20", "Content-Range: bytes 10-29/100") + right, ""},
		"less than it says":              {part, head(206, "Content-Length: 20", "Content-Range: bytes 10-29/100") + right[:7], "unexpected EOF"},
		"more than it says":              {part, head(206, "Content-Length: 20", "Content-Range: bytes 10-29/100") + right + "more", ""},
		"less than was asked for":        {part, head(206, "Content-Length: 7", "Content-Range: bytes 10-16/100") + right[:7], "7 bytes came, not 20"},
		"more than was asked for":        {part, head(206, "Content-Length: 30", "Content-Range: bytes 0-29/100") + string(hundred[:30]), "sends more than the 20 bytes"},
		"nothing":                        {part, head(206, "Content-Length: 0", "Content-Range: bytes 10-29/100"), "0 bytes came, not 20"},
		"an object that is shorter":      {part, head(206, "Content-Length: 20", "Content-Range: bytes 10-29/12") + right, "has only 12 bytes"},
		"a range that is none":           {part, head(206, "Content-Length: 20", "Content-Range: pixels x-y/z") + right, "has only 20 bytes"},
		"no range":                       {part, head(206, "Content-Length: 20") + right, "has only 20 bytes"},
		"neither a range nor a length":   {part, head(200) + right, "has only 0 bytes"},
		"a length below 0":               {part, head(206, "Content-Length: -5", "Content-Range: bytes 10-29/100") + right, "bad Content-Length"},
		"two lengths":                    {part, head(206, "Content-Length: 20", "Content-Length: 7", "Content-Range: bytes 10-29/100") + right, "Content-Length"},
		"a length that overflows":        {part, head(206, "Content-Length: 99999999999999999999", "Content-Range: bytes 10-29/100") + right, "bad Content-Length"},
		"a range beyond the end":         {part, head(416, "Content-Length: 0", "Content-Range: bytes */12"), "416"},
		"no HTTP":                        {part, "SSH-2.0-OpenSSH_9.2\r\n", "malformed HTTP"},
		"a whole object":                 {whole, head(200, "Content-Length: 100") + string(hundred), ""},
		"less of it than it says":        {whole, head(200, "Content-Length: 100") + string(hundred[:40]), "unexpected EOF"},
		"more of it than it says":        {whole, head(200, "Content-Length: 100") + string(hundred) + "more", ""},
		"a part of it as if it were all": {whole, head(206, "Content-Length: 20", "Content-Range: bytes 0-19/100") + string(hundred[:20]), "20 bytes came, not 100"},
		"an end that nobody proves":      {whole, head(200) + string(hundred), "bytes came"},
		"chunks that are cut":            {whole, head(200, "Transfer-Encoding: chunked") + "10\r\n" + string(hundred[:16]) + "\r\n", "unexpected EOF"},
		"terabytes":                      {whole, head(200, "Content-Length: 1000000000000") + string(hundred), "WithMaxBytes allows"},
		"not a byte":                     {whole, "", "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := loaded(t, t.Context(), raw(t, c.answer), c.part)
			if c.want == "" {
				require.NoError(t, err)
				require.Equal(t, map[bool][]byte{true: hundred, false: hundred[10:30]}[c.part == whole], data)
				return
			}
			var named *objects.Error
			require.ErrorAs(t, err, &named)
			require.Equal(t, "a", named.Key)
			require.ErrorContains(t, err, c.want)
			require.Nil(t, data, "nothing is decoded")
		})
	}
}

func TestALengthThatLiesTakesNoMemory(t *testing.T) {
	s := raw(t, "HTTP/1.1 200 x\r\nConnection: close\r\nContent-Length: 1000000000\r\n\r\n"+string(hundred))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := loaded(t, t.Context(), s, [2]int64{0, -1})
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "unexpected EOF")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4*100<<20), "LoadSample asks four times")
}

func TestCompressionThatNobodyAskedForIsLeftAsItIs(t *testing.T) {
	bomb := func() []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = io.CopyN(w, zeros{}, 64<<20)
		_ = w.Close()
		return b.Bytes()
	}()
	s := answering(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Length", strconv.Itoa(len(bomb)))
		_, _ = w.Write(bomb)
	})
	data, err := loaded(t, t.Context(), s, [2]int64{0, -1}, objects.WithMaxBytes(1<<20))
	require.NoError(t, err)
	require.True(t, bytes.Equal(bomb, data))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestWhatNeverEndsEndsWithTheContextOrTheTimeout(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"no answer": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"a byte, and then none": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
		"redirects in a circle": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := answering(t, handler)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := loaded(t, ctx, s, [2]int64{0, -1})
			require.ErrorIs(t, err, context.DeadlineExceeded)

			var keys objects.Keys
			keys.Add("a")
			ds, err := objects.New(s.bucket(t, 1), &keys, length, decodeLength)
			require.NoError(t, err)
			l, err := nwt.NewLoader(ds, nwt.WithTimeout(50*time.Millisecond), nwt.WithWorkers(1), nwt.WithLogger(silent), nwt.WithRetry(0, 0))
			require.NoError(t, err)
			for _, err = range l.Epoch(t.Context(), 0) {
			}
			require.Error(t, err)
			require.Regexp(t, "deadline exceeded|stalled", err.Error(), "whichever comes first on a busy machine")
			require.NoError(t, l.Close())

			ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			s.list = handler
			_, err = objects.List(ctx, s.bucket(t, 1), "", nil)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

func TestARedirectToAnotherHostGetsNoAuthorization(t *testing.T) {
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if secret := r.Header.Get("Authorization") + r.Header.Get("X-Amz-Security-Token"); secret != "" {
			t.Errorf("the other host gets %q", secret)
		}
		_, _ = w.Write(hundred)
	}))
	defer other.Close()
	elsewhere := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	s := answering(t, func(w http.ResponseWriter, r *http.Request) {
		require.NotEmpty(t, r.Header.Get("Authorization"))
		http.Redirect(w, r, elsewhere+"/a", http.StatusTemporaryRedirect)
	})
	data, err := loaded(t, t.Context(), s, [2]int64{0, -1})
	require.NoError(t, err)
	require.Equal(t, hundred, data)
	require.EqualValues(t, 1, asked.Load())
}

func TestAServerMayNotSayHowLongToWait(t *testing.T) {
	for _, after := range []string{"999999999", "Fri, 31 Dec 9999 23:59:59 GMT", "-1", "NaN"} {
		var asked atomic.Int32
		s := answering(t, func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) == 1 {
				w.Header().Set("Retry-After", after)
				fail(w, []int{http.StatusServiceUnavailable, http.StatusTooManyRequests}[len(after)%2], "SlowDown")
				return
			}
			_, _ = w.Write(hundred)
		})
		var keys objects.Keys
		keys.Add("a")
		ds, err := objects.New(s.bucket(t, 1), &keys, length, decodeLength)
		require.NoError(t, err)
		l, err := nwt.NewLoader(ds, nwt.WithWorkers(0), nwt.WithRetry(1, 0))
		require.NoError(t, err)
		for b, err := range l.Epoch(t.Context(), 0) {
			require.NoError(t, err)
			require.EqualValues(t, len(hundred), nwt.Values[int64](b, 0)[0])
		}
		require.NoError(t, l.Close())
		require.EqualValues(t, 2, asked.Load())
	}
}

func TestAPackedObjectThatChangesIsAnErrorNotAMixture(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	put(t, bucket, "a", hundred)
	var index objects.Index
	for at := int64(0); at < 100; at += 10 {
		index.Add("a", at, 10)
	}
	ds, err := objects.Packed(bucket, &index, length, decodeLength)
	require.NoError(t, err)
	_, err = nwt.LoadSample(t.Context(), ds, 3)
	require.NoError(t, err)
	_, err = nwt.LoadSample(t.Context(), ds, 7)
	require.NoError(t, err)
	put(t, bucket, "a", append(hundred, 1))
	_, err = nwt.LoadSample(t.Context(), ds, 3)
	var named *objects.Error
	require.ErrorAs(t, err, &named)
	require.False(t, named.Temporary())
	require.ErrorContains(t, err, "the object has changed since it was first read: it had 100 bytes of")

	// An answer that fails says nothing of the object's version.
	ds, err = objects.Packed(bucket, &index, length, decodeLength)
	require.NoError(t, err)
	s.fail(func(string, int) fault { return cut })
	_, err = nwt.LoadSample(t.Context(), ds, 3)
	require.Error(t, err)
	s.fail(func(string, int) fault { return none })
	put(t, bucket, "a", hundred)
	_, err = nwt.LoadSample(t.Context(), ds, 3)
	require.NoError(t, err)
}

// The object is overwritten between two answers that both come first.
func TestPartsOfTwoVersionsAreNoMixtureIfTheyAreTheFirstOnes(t *testing.T) {
	var asked atomic.Int32
	both := make(chan struct{})
	s := answering(t, func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		if n == 2 {
			close(both)
		}
		<-both
		w.Header().Set("Last-Modified", time.Unix(1_800_000_000+int64(n), 0).UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Range", strings.Replace(r.Header.Get("Range"), "=", " ", 1)+"/100")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(hundred[:10])
	})
	var index objects.Index
	index.Add("a", 0, 10)
	index.Add("a", 10, 10)
	ds, err := objects.Packed(s.bucket(t, 1), &index, length, decodeLength)
	require.NoError(t, err)
	errs := make(chan error)
	for i := range 2 {
		go func() {
			_, err := nwt.LoadSample(t.Context(), ds, i)
			errs <- err
		}()
	}
	err = errors.Join(<-errs, <-errs)
	require.ErrorContains(t, err, "the object has changed since it was first read")
	require.Equal(t, 1, strings.Count(err.Error(), "has changed"))
}

// page returns a page of a list, as S3 answers it; next is empty for the last.
func page(next string, keys ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<ListBucketResult><IsTruncated>%v</IsTruncated>", next != "")
	if next != "" {
		fmt.Fprintf(&b, "<NextContinuationToken>%s</NextContinuationToken>", next)
	}
	for _, key := range keys {
		fmt.Fprintf(&b, "<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>1</Size></Contents>", key)
	}
	return b.String() + "</ListBucketResult>"
}

// pages answers a list: page i comes after i pages.
func pages(t *testing.T, page func(i int) string) *server {
	t.Helper()
	s := newServer(t)
	s.list = func(w http.ResponseWriter, r *http.Request) {
		i, _ := strconv.Atoi(r.URL.Query().Get("continuation-token"))
		w.Header().Set("Content-Type", "application/xml")
		_, _ = io.WriteString(w, page(i))
	}
	return s
}

func TestAListIsInOrderWhateverOrderTheStoreNamesKeysIn(t *testing.T) {
	s := pages(t, func(i int) string {
		return []string{page("1", "b/2", "b/1", "a"), page("2", "é", "b.txt"), page("", "0", "b/")}[i]
	})
	keys, err := objects.List(t.Context(), s.bucket(t, 1), "", nil)
	require.NoError(t, err)
	var got []string
	for i := range keys.Len() {
		got = append(got, keys.At(i))
	}
	require.Equal(t, []string{"0", "a", "b.txt", "b/1", "b/2", "é"}, got)
}

func TestAListThatCannotBeRightIsAnError(t *testing.T) {
	thousand := make([]string, 1000) // as many as are asked for at once
	for i := range thousand {
		thousand[i] = fmt.Sprintf("p/%06d", i)
	}
	for want, page := range map[string]func(i int) string{
		`names the key "p/a" twice`:        func(int) string { return page("", "p/a", "p/b", "p/a") },
		`names the key "p/000007" twice`:   func(i int) string { return page([]string{"1", ""}[i], append(thousand[8*i:], "p/000007")...) },
		"names a page twice":               func(i int) string { return page(strconv.Itoa(i+1), thousand...) },
		"without the prefix: \"q/secret\"": func(int) string { return page("", "p/a", "q/secret") },
		"a key of 70002 bytes":             func(int) string { return page("", "p/"+strings.Repeat("k", 70_000)) },
		"deserialization failed": func(int) string {
			return "<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;&a;\">]>" + page("", "p/&b;")
		},
		"the driver panicked": func(int) string { return "<ListBucketResult><Contents><Key>p/a</Key></Contents></ListBucketResult>" },
	} {
		s := pages(t, page)
		_, err := objects.List(t.Context(), s.bucket(t, 1), "p/", nil)
		require.ErrorContains(t, err, want)
		require.Less(t, len(err.Error()), 1000)
	}
}

func TestAListThatNeverEndsEndsWithItsContext(t *testing.T) {
	for name, next := range map[string]func(i int) string{
		"empty pages":            func(i int) string { return page(strconv.Itoa(i + 1)) },
		"pages of new keys":      func(i int) string { return page(strconv.Itoa(i+1), fmt.Sprint("k", i)) },
		"pages that aren't kept": func(i int) string { return page(strconv.Itoa(i+1), fmt.Sprint("other", i)) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			enough := errors.New("enough")
			s := pages(t, func(i int) string {
				if i == 50 {
					cancel(enough)
				}
				return next(i)
			})
			_, err := objects.List(ctx, s.bucket(t, 1), "", func(key string, _ int64) bool { return key[0] == 'k' })
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

// A driver reads a page into memory as a whole. The client bounds it, if the program
// wants that.
func TestAClientBoundsThePagesOfAList(t *testing.T) {
	s := newServer(t)
	s.list = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		_, _ = io.WriteString(w, "<ListBucketResult><Contents><Key>")
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("k", 1<<16)); err != nil {
				return
			}
		}
	}
	s.wrap = func(body io.ReadCloser) io.ReadCloser { return http.MaxBytesReader(nil, body, 1<<20) }
	bucket := s.bucket(t, 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := objects.List(t.Context(), bucket, "", nil)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "request body too large")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
}
