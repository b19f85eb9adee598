package spool

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"
)

// key signs requests with HMAC-SHA-256 (RFC 2104). A role that can make the server write files, but cannot read the
// pid file, cannot forge a request.
type key [32]byte

func newKey() (k key, err error) {
	_, err = rand.Read(k[:])
	return k, err
}

// keyLife is the time for which a key is used. It is limited because a base backup of a running server copies the pid file with
// the key.
const keyLife = 24 * time.Hour

// keyGrace is the time for which the previous key is still accepted after the pid file has the current one, for requests that were
// signed before the change.
const keyGrace = time.Minute

// keyring has the current key and, for some time, the previous one.
type keyring struct {
	mu            sync.Mutex
	present, last key       // the current key and the previous one
	published     time.Time // when the pid file got the current key; zero: it has the previous one or none
	accept        bool      // requests with the key last are accepted too
}

// renew makes a new key if there is none, or if the pid file has had the current one for keyLife. While the pid file cannot be written,
// for example because its file system is full, it makes no other key, and the previous one stays accepted.
func (r *keyring) renew(now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.present != (key{}) && (r.published.IsZero() || now.Sub(r.published) < keyLife) {
		r.accept = r.accept && (r.published.IsZero() || now.Sub(r.published) < keyGrace)
		return nil
	}
	k, err := newKey()
	if err != nil {
		return err
	}
	r.accept = r.present != key{}
	r.present, r.last, r.published = k, r.present, time.Time{}
	return nil
}

// wasPublished notes that the pid file has the current key.
func (r *keyring) wasPublished(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.published.IsZero() {
		r.published = now
	}
}

// signing returns the key for new requests.
func (r *keyring) signing() key {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.present
}

// accepted returns the keys with which a request may be signed.
func (r *keyring) accepted() []key {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.accept {
		return []key{r.present, r.last}
	}
	return []key{r.present}
}

// blocks returns the key XOR ipad and the key XOR opad in hex; see RFC 2104. SQL needs them to compute the HMAC, because SQL
// has only SHA-256.
func (k key) blocks() (inner, outer string) {
	var i, o [sha256.BlockSize]byte
	copy(i[:], k[:])
	copy(o[:], k[:])
	for n := range i {
		i[n] ^= 0x36
		o[n] ^= 0x5c
	}
	return hex.EncodeToString(i[:]), hex.EncodeToString(o[:])
}

// sign returns the HMAC of a message in hex.
func (k key) sign(message []byte) string {
	h := hmac.New(sha256.New, k[:])
	h.Write(message)
	return hex.EncodeToString(h.Sum(nil))
}

// verify reports whether code is the HMAC of message. It compares in constant time.
func (k key) verify(message []byte, code string) bool {
	return hmac.Equal([]byte(k.sign(message)), []byte(code))
}
