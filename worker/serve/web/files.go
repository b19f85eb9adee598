package web

import (
	"crypto/tls"

	"pg_stat_backtrace/worker/host/rootfs"
)

// Files has the contents of files of a Config that root has read.
type Files struct {
	tokens       *tokens
	certificates *certificates
}

// ReadAsRoot reads those files of the configuration that only root can change. A process calls it while it is root, and sets
// Config.Files to the result. Later, when the process runs as another user that may not read these files, it uses the
// contents in Config.Files. ReadAsRoot ignores errors, because Check finds files that cannot be read.
func (c *Config) ReadAsRoot() *Files {
	f := &Files{}
	if path, err := rootfs.RootOnlyPath(c.TokenFile); c.TokenFile != "" && err == nil {
		if sums, seen, err := readTokens(path); err == nil {
			f.tokens = &tokens{path: c.TokenFile, root: true, sums: sums, seen: seen}
		}
	}
	if c.CertFile == "" || c.KeyFile == "" {
		return f
	}
	cert, err1 := rootfs.RootOnlyPath(c.CertFile)
	key, err2 := rootfs.RootOnlyPath(c.KeyFile)
	if err1 != nil || err2 != nil {
		return f
	}
	r := &certificates{cert: c.CertFile, key: c.KeyFile, root: true, changed: lastChanges(cert, key)}
	if loaded, err := tls.LoadX509KeyPair(cert, key); err == nil {
		r.loaded, f.certificates = &loaded, r
	}
	return f
}

// tokens returns the tokens of the configuration; nil: requests need no token.
func (c *Config) tokens() *tokens {
	switch {
	case c.TokenFile == "":
		return nil
	case c.Files != nil && c.Files.tokens != nil:
		return c.Files.tokens
	}
	return &tokens{path: c.TokenFile}
}

// certificates returns the certificates of the configuration; nil: the listener works without TLS.
func (c *Config) certificates() *certificates {
	switch {
	case c.CertFile == "" && c.KeyFile == "":
		return nil
	case c.Files != nil && c.Files.certificates != nil:
		return c.Files.certificates
	}
	return &certificates{cert: c.CertFile, key: c.KeyFile}
}
