package serve

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
)

// A client of this host and its server speak over a Unix socket, in messages of 12 bytes and a body: the
// body's length, a kind and a number, 4 bytes each. A body is lines of JSON.
//
// The client begins. Both show that they know the token, without telling it; then the client asks for
// batches, as many as it likes at a time, under numbers of its own. A batch lies in a file in memory, which
// comes with the first answer that names it; it is the client's until the client releases it.
const (
	kindHello     = 1 + iota // {"version", "nonce", "rank", "world"}
	kindChallenge            // {"version", "nonce", "proof"}
	kindProof                // {"proof"}
	kindAbout                // a description
	kindAsk                  // a ticket; the number is the request's
	kindBatch                // FILE LEFT, a layout, the state after it, bad samples; the number is the request's
	kindError                // {"error", "temporary"}; the number is the request's, 0: it is the connection's
	kindRelease              // the number is the file's
	kindWaiting              // the client can do nothing before this request is answered
	kindAlive                // the answer to that, at once
)

const (
	maxAsked   = 1 << 16 // bytes of a client's message
	maxAnswer  = 1 << 24 // bytes of a server's
	maxPending = 64      // requests of a client at a time
	maxFiles   = 256     // of a client
)

type frame struct {
	kind, number uint32
	body         []byte
}

func (f frame) encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 12+len(f.body)), uint32(len(f.body)))
	b = binary.LittleEndian.AppendUint32(b, f.kind)
	return append(binary.LittleEndian.AppendUint32(b, f.number), f.body...)
}

func readFrame(r *bufio.Reader, most int) (f frame, err error) {
	var head [12]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	f.kind, f.number = binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint32(head[8:])
	if int64(n) > int64(most) {
		return f, fmt.Errorf("a message of %d bytes: at most %d", n, most)
	}
	f.body = make([]byte, n)
	_, err = io.ReadFull(r, f.body)
	return f, err
}

// proof shows that who makes it knows the token.
func proof(token, who, nonces string) string {
	sum := hmac.New(sha256.New, []byte(token))
	sum.Write([]byte(who + nonces))
	return hex.EncodeToString(sum.Sum(nil))
}
