package spool

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
)

// key signs requests: HMAC-SHA-256 (RFC 2104). Who may make the server write
// files, but may not read the pid file, cannot write a request.
type key [32]byte

func newKey() (k key, err error) {
	_, err = rand.Read(k[:])
	return k, err
}

// blocks returns the key XOR ipad and XOR opad in hex: what SQL, which has
// SHA-256 but no HMAC, computes with.
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

// sign returns the code of a message in hex.
func (k key) sign(message []byte) string {
	h := hmac.New(sha256.New, k[:])
	h.Write(message)
	return hex.EncodeToString(h.Sum(nil))
}

// genuine compares in constant time.
func (k key) genuine(message []byte, code string) bool {
	return hmac.Equal([]byte(k.sign(message)), []byte(code))
}
