package web

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// ErrCertificate means that the certificate or its key cannot be used.
var ErrCertificate = errors.New("certificate cannot be used")

// certificates reads a certificate and its key, and reads them again after a change.
type certificates struct {
	cert, key string

	mu      sync.Mutex
	checked time.Time
	changed [2]time.Time
	loaded  *tls.Certificate
}

// CheckCertificate returns an error that wraps ErrCertificate if a listener could not use the two files.
func CheckCertificate(cert, key string) error {
	_, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCertificate, err)
	}
	return nil
}

// certRecheck is how often the files are checked for a change.
const certRecheck = 10 * time.Second

// get returns the certificate. While new files are incomplete, the previous one stays in use.
func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.loaded != nil && now.Sub(c.checked) < certRecheck {
		return c.loaded, nil
	}
	c.checked = now
	var changed [2]time.Time
	for i, name := range []string{c.cert, c.key} {
		if info, err := os.Stat(name); err == nil {
			changed[i] = info.ModTime()
		}
	}
	if c.loaded != nil && changed == c.changed {
		return c.loaded, nil
	}
	loaded, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		if c.loaded != nil {
			return c.loaded, nil
		}
		return nil, fmt.Errorf("%w: %w", ErrCertificate, err)
	}
	c.loaded, c.changed = &loaded, changed
	return c.loaded, nil
}

// config is the configuration of the server's side.
func (c *certificates) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get, NextProtos: []string{"http/1.1"}}
}
