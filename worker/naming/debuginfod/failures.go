package debuginfod

import "time"

// maxFailed bounds how many failures are remembered.
const maxFailed = 4096

// failures has the files whose download failed. Files that no server has are not among them.
type failures map[string]failure

// failure has the error, and the time until which the file is not requested again.
type failure struct {
	err   error
	until time.Time
}

// remember stores a failure.
func (c *Client) remember(key string, err error, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures == nil || len(c.failures) >= maxFailed {
		c.failures = make(failures)
	}
	c.failures[key] = failure{err, c.now().Add(pause)}
}

// remembered returns the error of a failed download during the pause after it, or nil. key has the kind and the
// build-id.
func (c *Client) remembered(key string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.failures[key]
	if ok && !c.now().Before(f.until) {
		delete(c.failures, key)
		return nil
	}
	return f.err
}

// until returns the end of the pause after a failed download, or the zero time if none is remembered.
func (c *Client) until(key string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures[key].until
}
