package objects_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/objects"
)

// An answerer answers requests for objects without a network, so that a test's clock may be
// virtual. n is the number of the attempt for this object, from 0 on.
type answerer struct {
	attempts [1000]atomic.Int32
	wait     func(object, n int) (before, within time.Duration) // the answer, its body; below 0: for ever
	data     [][]byte                                           // of the objects, instead of content
}

func (a *answerer) Do(r *http.Request) (*http.Response, error) {
	object, err := strconv.Atoi(path.Base(r.URL.Path))
	if err != nil {
		return nil, err
	}
	before, within := a.wait(object, int(a.attempts[object].Add(1))-1)
	if err := pass(r.Context(), before); err != nil {
		return nil, err
	}
	data, status := content(object), http.StatusOK
	if a.data != nil {
		data = a.data[object]
	}
	head := http.Header{"Content-Length": {strconv.Itoa(len(data))}}
	if part := r.Header.Get("Range"); part != "" {
		var from, to int
		if n, err := fmt.Sscanf(part, "bytes=%d-%d", &from, &to); n == 0 {
			return nil, err
		} else if n == 1 {
			to = len(data) - 1
		}
		head.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(data)))
		data, status = data[from:to+1], http.StatusPartialContent
	}
	half := len(data) / 2
	body := io.MultiReader(bytes.NewReader(data[:half]), waiting{r.Context(), within}, bytes.NewReader(data[half:]))
	return &http.Response{StatusCode: status, Header: head, ContentLength: int64(len(data)), Body: io.NopCloser(body), Request: r}, nil
}

// waiting is nothing that takes a time to read.
type waiting struct {
	ctx context.Context
	d   time.Duration
}

func (w waiting) Read([]byte) (int, error) {
	if err := pass(w.ctx, w.d); err != nil {
		return 0, err
	}
	return 0, io.EOF
}

func pass(ctx context.Context, d time.Duration) error {
	var over <-chan time.Time
	if d >= 0 {
		over = time.After(d)
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *answerer) bucket(t *testing.T) *blob.Bucket {
	t.Helper()
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String("http://store.invalid"), UsePathStyle: true, Region: "us-east-1",
		Credentials: aws.AnonymousCredentials{}, HTTPClient: a, Retryer: retry.AddWithMaxAttempts(retry.NewStandard(), 1),
	})
	bucket, err := s3blob.OpenBucketV2(t.Context(), client, bucketName, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = bucket.Close() })
	return bucket
}

// of returns a dataset of n objects, whole or each in two parts that are read together.
func (a *answerer) of(t *testing.T, n int, packed bool, opts ...objects.Option) nwt.Dataset {
	t.Helper()
	var keys objects.Keys
	var index objects.Index
	for i := range n {
		keys.Add(strconv.Itoa(i))
		index.Add(strconv.Itoa(i), 0, int64(len(content(i))))
	}
	if packed {
		ds, err := objects.Packed(a.bucket(t), &index, fields, decode, opts...)
		require.NoError(t, err)
		return ds
	}
	ds, err := objects.New(a.bucket(t), &keys, fields, decode, opts...)
	require.NoError(t, err)
	return ds
}

func TestWhereOneRequestInAHundredStallsNothingIsLost(t *testing.T) {
	for name, stall := range map[string]func(object, n int) (before, within time.Duration){
		"before the answer": func(object, n int) (before, within time.Duration) { return stallsAt(object, n), 0 },
		"within the answer": func(object, n int) (before, within time.Duration) { return 20 * time.Millisecond, stallsAt(object, n) },
		"three in a row":    func(object, n int) (before, within time.Duration) { return stallsAt(object, n/3), 0 },
		"and all answers are slow": func(object, n int) (before, within time.Duration) {
			return max(300*time.Millisecond, stallsAt(object, n)), 0
		},
	} {
		for _, packed := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", packed: ", packed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ds := (&answerer{wait: stall}).of(t, 1000, packed)
					got := epoch(t, ds, nwt.WithTimeout(time.Second), nwt.WithRetry(0, 0), nwt.WithWorkers(16))
					require.Equal(t, upTo(1000), got)
				})
			})
		}
	}
}

// stallsAt is so long that a request in a hundred never goes on.
func stallsAt(object, n int) time.Duration {
	if n == 0 && object%100 == 42 {
		return time.Hour
	}
	return 0
}

func TestARealServerMayStallToo(t *testing.T) {
	s := newServer(t)
	ds := trainSet(t, s.bucket(t, 1), 100)
	s.fail(func(key string, n int) fault {
		if n == 0 && strings.HasSuffix(key, "7") {
			return []fault{stalled, stalledWithin}[key[len(key)-2]%2]
		}
		return none
	})
	got := epoch(t, ds, nwt.WithTimeout(2*time.Second), nwt.WithRetry(0, 0), nwt.WithWorkers(16))
	slices.Sort(got)
	require.Equal(t, upTo(100), got)
}

func TestARequestThatStallsAgainAndAgainIsAnErrorThatSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answerer{wait: func(int, int) (before, within time.Duration) { return time.Hour, 0 }}
		start := time.Now()
		_, err := nwt.LoadSample(t.Context(), a.of(t, 1, false), 0)
		var named *objects.Error
		require.ErrorAs(t, err, &named)
		require.True(t, named.Temporary())
		require.ErrorContains(t, err, "nothing came for 40s, after 3 requests that stalled too")
		require.EqualValues(t, 4*4, a.attempts[0].Load(), "LoadSample repeats what is temporary three times")
		require.Equal(t, 4*75, int(time.Since(start).Seconds()), "5, 10, 20 and 40 s each time")
	})
	_, err := objects.New((&answerer{}).bucket(t), new(objects.Keys), fields, decode)
	require.Error(t, err)
}

func TestAnAnswerThatComesSlowlyIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answerer{wait: func(int, int) (before, within time.Duration) { return 4900 * time.Millisecond, 4900 * time.Millisecond }}
		_, err := nwt.LoadSample(t.Context(), a.of(t, 1, false), 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, a.attempts[0].Load())
	})
}

func TestDecodingIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answerer{wait: func(int, int) (before, within time.Duration) { return 0, 0 }}
		var keys objects.Keys
		keys.Add("0")
		ds, err := objects.New(a.bucket(t), &keys, fields, func(ctx context.Context, key string, data []byte, dst *nwt.Sample) error {
			time.Sleep(time.Hour)
			require.NoError(t, ctx.Err())
			return decode(ctx, key, data, dst)
		})
		require.NoError(t, err)
		_, err = nwt.LoadSample(t.Context(), ds, 0)
		require.NoError(t, err)
	})
}
