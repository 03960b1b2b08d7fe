package objects_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
)

// A server is an S3 server on 127.0.0.1 that is as slow and as faulty as a test
// wants it.
type server struct {
	*httptest.Server
	latency time.Duration                     // of reading an object
	list    http.HandlerFunc                  // answers lists instead of the server
	wrap    func(io.ReadCloser) io.ReadCloser // not nil: of the bodies that clients read

	mu     sync.Mutex
	refuse func(r *http.Request) (status int, code string) // not nil: answers requests, unless the status is 0
	// fault says how to answer the n-th attempt, from 0 on, to read an object.
	fault    func(key string, n int) fault
	attempts map[string]int // by key
	ranges   []string       // that were asked for
	active   int
	busiest  int // most requests at once
}

type fault int

const (
	none fault = iota
	busy       // 503
	mute       // the connection is cut before the answer
	cut        // and in the middle of it
	denied
	stalled       // no answer
	stalledWithin // half of one
)

const bucketName = "bucket"

func newServer(t *testing.T) *server {
	t.Helper()
	backend := s3mem.New()
	require.NoError(t, backend.CreateBucket(bucketName))
	s3 := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	s := &server{attempts: map[string]int{}, fault: func(string, int) fault { return none }}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, object := strings.CutPrefix(r.URL.Path, "/"+bucketName+"/")
		s.mu.Lock()
		refuse := s.refuse
		s.mu.Unlock()
		if refuse != nil {
			if status, code := refuse(r); status != 0 {
				fail(w, status, code)
				return
			}
		}
		switch {
		case r.Method == http.MethodGet && object && key != "":
			s.read(s3, key, w, r)
		case r.Method == http.MethodGet && s.list != nil:
			s.list(w, r)
		default:
			s3.ServeHTTP(w, r)
		}
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // gofakes3 writes some headers twice
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// read answers a request for an object.
func (s *server) read(s3 http.Handler, key string, w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	fault := s.fault(key, s.attempts[key])
	s.attempts[key]++
	s.ranges = append(s.ranges, r.Header.Get("Range"))
	s.active++
	s.busiest = max(s.busiest, s.active)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.active--
	}()
	time.Sleep(s.latency)
	switch fault {
	case none:
		s3.ServeHTTP(w, r)
	case busy:
		fail(w, http.StatusServiceUnavailable, "SlowDown")
	case denied:
		fail(w, http.StatusForbidden, "AccessDenied")
	case mute:
		panic(http.ErrAbortHandler)
	case stalled:
		<-r.Context().Done()
	case cut, stalledWithin:
		whole := httptest.NewRecorder()
		s3.ServeHTTP(whole, r)
		body := whole.Body.Bytes()
		maps.Copy(w.Header(), whole.Header())
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(whole.Code)
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		if fault == stalledWithin {
			<-r.Context().Done()
		}
		panic(http.ErrAbortHandler)
	}
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>on purpose</Message></Error>`, code)
}

// fail makes the server answer so from now on.
func (s *server) fail(fault func(key string, n int) fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// asked returns the ranges of all requests for objects so far.
func (s *server) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ranges)
}

// bucket opens the server's bucket through the AWS client, which tries a request
// so many times.
func (s *server) bucket(t testing.TB, tries int) *blob.Bucket {
	t.Helper()
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String(s.URL),
		UsePathStyle: true,
		Region:       "us-east-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
		HTTPClient: wrapping{awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.MaxIdleConnsPerHost = 64 }), s.wrap},
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts = tries
			o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return time.Millisecond, nil })
		}),
	})
	bucket, err := s3blob.OpenBucketV2(t.Context(), client, bucketName, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = bucket.Close() })
	return bucket
}

// wrapping is a client whose bodies are wrapped.
type wrapping struct {
	s3.HTTPClient
	wrap func(io.ReadCloser) io.ReadCloser
}

func (w wrapping) Do(r *http.Request) (*http.Response, error) {
	response, err := w.HTTPClient.Do(r)
	if err == nil && w.wrap != nil {
		response.Body = w.wrap(response.Body)
	}
	return response, err
}

// put writes an object.
func put(t *testing.T, bucket *blob.Bucket, key string, data []byte) {
	t.Helper()
	require.NoError(t, bucket.WriteAll(t.Context(), key, data, nil))
}

func TestTheServerOfTheseTestsIsFaultyAsTold(t *testing.T) {
	s := newServer(t)
	bucket := s.bucket(t, 1)
	put(t, bucket, "a", slices.Repeat([]byte("0123456789"), 100))
	for _, f := range []fault{busy, mute, cut, denied} {
		s.fail(func(string, int) fault { return f })
		_, err := bucket.ReadAll(t.Context(), "a")
		require.Error(t, err, f)
	}
	s.fail(func(string, int) fault { return none })
	r, err := bucket.NewRangeReader(t.Context(), "a", 5, 7, nil)
	require.NoError(t, err)
	data, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "5678901", string(data))
	require.NoError(t, r.Close())
	asked := s.asked()
	require.Equal(t, "bytes=5-11", asked[len(asked)-1])
}

var silent = slog.New(slog.DiscardHandler)
