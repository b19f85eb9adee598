// Package debuginfod downloads debug files by build-id from servers with elfutils' debuginfod protocol
// (debuginfod(8), "WEBAPI"). It uses a cache that it shares with other clients (debuginfod-client-config(7)).
//
// It is made for a service. Callers need not wait for a download: RequestDebugFile returns at once. Concurrent
// requests for a build share one download, and misses are remembered. A server that fails repeatedly is not used for
// a while. Time, size and disk space are limited. Servers are not trusted: a file is kept only if it is an ELF file
// with the requested build-id.
//
// The package does not know processes or symbols. It does not log. It reports events through Config.OnEvent.
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

// Kind is the kind of a requested file: the last part of the path /buildid/BUILDID/KIND, and the file's name in the
// cache.
type Kind string

// The kinds of files.
const (
	DebugInfo  Kind = "debuginfo"
	Executable Kind = "executable"
)

// Errors for callers to branch on. Each is wrapped with the request and the server.
var (
	// ErrNotFound means that no server has the file, now or according to a remembered miss.
	ErrNotFound = errors.New("no debuginfod server has it")
	// ErrServers means that no server gave the file, and at least one server failed. A later request may succeed.
	ErrServers = errors.New("no debuginfod server gave it")
	// ErrBuildID means that the requested id is not a build-id.
	ErrBuildID = errors.New("not a build-id")
	// ErrRefused means that a server sent something other than the requested file.
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

// The defaults of Config. Sizes are in bytes.
const (
	DefaultMaxSize        = 1 << 30
	DefaultCacheSize      = 4 << 30
	DefaultMinFree        = 1 << 30
	DefaultConnectTimeout = 10 * time.Second
	DefaultTimeout        = 90 * time.Second
	DefaultMaxTime        = 30 * time.Minute
	DefaultParallel       = 2
)

// None as a limit in Config means no limit.
const None = -1

// Config configures a Client. In each limit, 0 means the default and None means no limit.
type Config struct {
	// URLs are the servers (http or https), which are asked in turn. Without a URL the client is off: see Off.
	URLs []string
	// CacheDir is the cache folder. It is made if it is missing. See DefaultCacheDir.
	CacheDir string
	// MaxSize bounds one file, and CacheSize all files in the cache, in bytes. The least recently used files are
	// removed.
	MaxSize, CacheSize int64
	// MinFree is how many bytes a download must leave free on the file system of the cache.
	MinFree int64
	// ConnectTimeout bounds the time to connect.
	ConnectTimeout time.Duration
	// Timeout is the time in which a server must send each 100 KiB, or the rest of the file. It begins with the
	// request.
	Timeout time.Duration
	// MaxTime bounds one whole download.
	MaxTime time.Duration
	// Parallel is how many downloads run at the same time.
	Parallel int
	// OnEvent, if not nil, is called with each event, by several goroutines. It must not block.
	OnEvent func(Event)
}

// Off reports whether no server is configured.
func (c *Config) Off() bool { return len(c.URLs) == 0 }

// Check returns an error if a server URL is invalid.
func (c *Config) Check() error {
	_, err := newServers(c.URLs)
	return err
}

// setDefaults replaces 0 by the default, and None by 0, which means "no limit" inside this package.
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

// Client downloads files from debuginfod servers. It is safe for concurrent use.
type Client struct {
	cfg     Config
	cache   cache
	http    *http.Client
	servers []*server
	now     func() time.Time

	// ctx is the context of the downloads, and ends with Close. No caller's context is used, because several callers
	// may wait for one download.
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

// New makes a client and its cache folder, and evicts files if the cache is over its limit. It returns an error for
// an invalid configuration or an unusable folder.
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

// Close cancels the running downloads and waits for their end. Partial files are removed.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
	c.http.CloseIdleConnections()
}

// begin adds a goroutine to running, for which Close waits. It returns false if the client is closed.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Add(1)
	return true
}

// maxIDBytes is the length of the longest accepted build-id, in bytes. Usual lengths are 20 (SHA-1), 16 and 8.
const maxIDBytes = 64

// ValidID reports whether id is a build-id that may be used in a path or URL: lower-case hexadecimal digits, two for
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
