// Package debuginfod gets debug files by their build-id from servers that speak elfutils' debuginfod protocol
// (debuginfod(8), "WEBAPI"), into a cache that other clients use too (debuginfod-client-config(7)).
//
// It is made for a service: nobody waits for a download unless he wants to (Request returns at once), a build is asked
// for once at a time, what the servers do not have is remembered, a server that fails again and again is left alone for
// a while, and time, size and disk space are bounded. Servers are not trusted: a file is kept only if it is an ELF file
// with the build-id that was asked for.
//
// The package must not know of processes or symbols. It logs nothing: it tells what happens through Config.OnEvent.
package debuginfod

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
)

// Kind is what is asked for: the last part of the path /buildid/BUILDID/KIND, and the file's name in the cache.
type Kind string

// The kinds of files.
const (
	DebugInfo  Kind = "debuginfo"
	Executable Kind = "executable"
)

// Errors that callers branch on; each comes wrapped with what was asked of whom.
var (
	// ErrNotFound means that no server has the file, as they say now or said not long ago.
	ErrNotFound = errors.New("no debuginfod server has it")
	// ErrServers means that no server could be asked with success; it may be different later.
	ErrServers = errors.New("no debuginfod server gave it")
	// ErrBuildID means that what was asked for is no build-id.
	ErrBuildID = errors.New("not a build-id")
	// ErrRefused means that a server sent something other than the file that was asked for.
	ErrRefused = errors.New("refused")
	// ErrTooLarge means that the file is larger than Config.MaxSize.
	ErrTooLarge = errors.New("file too large")
	// ErrNoSpace means that the file system of the cache would be left with less than Config.MinFree.
	ErrNoSpace = errors.New("not enough free space")
	// ErrStalled means that a server sent too little for too long (Config.Timeout).
	ErrStalled = errors.New("server too slow")
	// ErrClosed means that the client was closed.
	ErrClosed = errors.New("debuginfod client closed")
)

// The defaults of Config.
const (
	DefaultMaxSize        = 1 << 30
	DefaultCacheSize      = 4 << 30
	DefaultMinFree        = 1 << 30
	DefaultConnectTimeout = 10 * time.Second
	DefaultTimeout        = 90 * time.Second
	DefaultMaxTime        = 30 * time.Minute
	DefaultParallel       = 2
)

// None is a limit in Config that means that there is no such limit.
const None = -1

// Config configures a Client. In each limit, 0 means the default and None no limit.
type Config struct {
	// URLs of the servers (http or https), asked in turn. Without one the client is off: see Off.
	URLs []string
	// CacheDir is where files are kept; it is made if it is missing. See DefaultCacheDir.
	CacheDir string
	// MaxSize bounds one file, CacheSize all files of the cache, in bytes: the least recently used ones go.
	MaxSize, CacheSize int64
	// MinFree is how many bytes a download must leave free on the file system of the cache.
	MinFree int64
	// ConnectTimeout bounds the making of a connection.
	ConnectTimeout time.Duration
	// Timeout is within which a server has to send each 100 KiB, or the rest, from the request on.
	Timeout time.Duration
	// MaxTime bounds one download as a whole.
	MaxTime time.Duration
	// Parallel is how many downloads run side by side.
	Parallel int
	// OnEvent, if not nil, is told what happens, by several goroutines at once; it must not wait.
	OnEvent func(Event)
}

// Off reports whether no server is configured.
func (c *Config) Off() bool { return len(c.URLs) == 0 }

// Check reports whether the servers are URLs that can be asked.
func (c *Config) Check() error {
	_, err := newServers(c.URLs)
	return err
}

// setDefaults fills in what is 0, and turns None into 0, which means "no limit" inside of this package.
func (c *Config) setDefaults() {
	def(&c.MaxSize, DefaultMaxSize)
	def(&c.CacheSize, DefaultCacheSize)
	def(&c.MinFree, DefaultMinFree)
	def(&c.ConnectTimeout, DefaultConnectTimeout)
	def(&c.Timeout, DefaultTimeout)
	def(&c.MaxTime, DefaultMaxTime)
	if c.Parallel <= 0 {
		c.Parallel = DefaultParallel
	}
}

func def[T ~int64](v *T, value T) {
	switch {
	case *v == 0:
		*v = value
	case *v < 0:
		*v = 0
	}
}

// Client asks debuginfod servers. It is safe for concurrent use.
type Client struct {
	cfg     Config
	cache   cache
	http    *http.Client
	servers []*server
	now     func() time.Time

	// ctx ends with Close; it, and not a caller's, is that of the downloads: several may wait for one.
	ctx    context.Context //nolint:containedctx // the client's own life
	cancel context.CancelFunc
	slots  *semaphore.Weighted
	flight singleflight.Group

	mu       sync.Mutex
	closed   bool
	waiting  int
	failures failures
	running  sync.WaitGroup
}

// New makes a client and its cache folder, and removes from the cache what is over its limit. The error is that of the
// configuration or of the folder.
func New(cfg Config) (*Client, error) {
	cfg.setDefaults()
	servers, err := newServers(cfg.URLs)
	if err != nil {
		return nil, err
	}
	c := &Client{
		cfg: cfg, servers: servers, now: time.Now, http: newHTTP(cfg, servers),
		cache: cache{dir: cfg.CacheDir, limit: cfg.CacheSize},
		slots: semaphore.NewWeighted(int64(cfg.Parallel)),
	}
	if err := c.cache.prepare(); err != nil {
		return nil, fmt.Errorf("debuginfod cache: %w", err)
	}
	c.cache.evict("", c.now())
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// Dir returns the folder of the cache.
func (c *Client) Dir() string { return c.cache.dir }

// Close ends the downloads that run and waits for their ends. What was half there is removed.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
	c.http.CloseIdleConnections()
}

// begin counts a goroutine in; false if the client is closed.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Add(1)
	return true
}

// maxIDBytes is the length of the longest build-id that is taken, in bytes; usual are 20 (SHA-1), 16 and 8.
const maxIDBytes = 64

// ValidID reports whether id is a build-id as it may stand in a path or an URL: lower-case hexadecimal digits, two for
// each byte, of 2 to 64 bytes.
func ValidID(id string) bool {
	if len(id) < 4 || len(id) > 2*maxIDBytes || len(id)%2 != 0 {
		return false
	}
	for i := range len(id) {
		if d := id[i]; (d < '0' || d > '9') && (d < 'a' || d > 'f') {
			return false
		}
	}
	return true
}
