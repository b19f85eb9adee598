package web

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// ErrCertificate means that the certificate or its key cannot be used.
var ErrCertificate = errors.New("certificate cannot be used")

// certificates reads a certificate and its key from files, and reads the files again after a change.
type certificates struct {
	cert, key string
	log       zerolog.Logger
	root      bool // root has read the files, and this process may have no permission to see a change

	mu      sync.Mutex
	checked time.Time    // time of the last check for a change
	changed [2]time.Time // modification times of cert and key when they were read
	loaded  *tls.Certificate
	// reported is the last logged error of reading changed files.
	reported string
}

// certRecheck is the shortest time between two checks of the files for a change.
const certRecheck = 10 * time.Second

// lastChanges returns the modification times of the two files; the zero time: not known.
func lastChanges(cert, key string) (changed [2]time.Time) {
	for i, name := range []string{cert, key} {
		if info, err := os.Stat(name); err == nil {
			changed[i] = info.ModTime()
		}
	}
	return changed
}

// get returns the certificate. While new files are incomplete or cannot be read, it returns the previous certificate. The
// error wraps ErrCertificate.
func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.loaded != nil && now.Sub(c.checked) < certRecheck {
		return c.loaded, nil
	}
	c.checked = now
	changed := lastChanges(c.cert, c.key)
	if c.loaded != nil && (changed == c.changed || c.root && changed == [2]time.Time{}) {
		return c.loaded, nil
	}
	loaded, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrCertificate, err)
		if c.loaded == nil {
			return nil, err
		}
		if err.Error() != c.reported {
			c.log.Warn().Err(err).Msg(lastContent)
		}
		c.reported = err.Error()
		return c.loaded, nil
	}
	c.loaded, c.changed, c.reported, c.root = &loaded, changed, "", false
	return c.loaded, nil
}

// names reports whether the certificate is valid for this host name or address.
func (c *certificates) names(host string) bool {
	cert, err := c.get(nil)
	if err != nil || cert.Leaf == nil {
		return false
	}
	if len(cert.Leaf.DNSNames) == 0 && len(cert.Leaf.IPAddresses) == 0 {
		return strings.EqualFold(host, cert.Leaf.Subject.CommonName)
	}
	return cert.Leaf.VerifyHostname(host) == nil
}

// config returns the TLS configuration of the listener.
func (c *certificates) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get, NextProtos: []string{"http/1.1"}}
}
