package web

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
)

// writePair writes a certificate and its key as PEM files.
func writePair(c tls.Certificate, cert, key string) error {
	private, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	return errors.Join(err,
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}
