package rules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// ErrFile means that a file of rules cannot be used. The message has the line and the reason.
var ErrFile = errors.New("rules")

const maxFile = 64 << 10

// Load returns the built-in rules with the changes of a file. The file must belong to root or to the user of this process,
// and other users must not be able to write to it. The error wraps ErrFile.
func Load(path string) (Config, error) {
	text, err := read(path)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrFile, err)
	}
	c, err := Parse(text)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	if len(c.Command.Run) > 0 {
		if err := CheckProgram(c.Command.Run[0]); err != nil {
			return Config{}, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
		}
	}
	return c, nil
}

func read(path string) ([]byte, error) {
	const others = 0o022
	// Without O_NONBLOCK a named pipe would block. O_NOFOLLOW is not set: configuration is often a link.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is not a regular file", path)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to user id %d; it must belong to root or to the worker's user", path, st.Uid)
	case st.Mode&others != 0:
		return nil, fmt.Errorf("%s can be written by its group or by everybody (mode %04o); run chmod go-w", path, st.Mode&0o7777)
	case st.Size > maxFile:
		return nil, fmt.Errorf("%s has %d bytes; at most %d are allowed", path, st.Size, maxFile)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return text, nil
}

// lineError is an error in a line of the file.
type lineError struct {
	line int
	text string
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.text) }

func at(n *yaml.Node, format string, args ...any) error {
	return &lineError{n.Line, fmt.Sprintf(format, args...)}
}

// Parse parses the text of a file of rules. An empty text means the built-in rules. The error has the reason and, if it is known,
// the line.
func Parse(text []byte) (c Config, err error) {
	defer func() { // the library does not promise to be free of panics for hostile input
		if p := recover(); p != nil {
			err = fmt.Errorf("not YAML: %v", p)
		}
	}()
	c = Default()
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return c, nil // the text is empty
	} else if err != nil {
		return Config{}, fmt.Errorf("not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var more yaml.Node
	if err := d.Decode(&more); err == nil {
		return Config{}, at(&more, "a second document")
	} else if !errors.Is(err, io.EOF) {
		return Config{}, fmt.Errorf("not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) != 1 {
		return Config{}, errors.New("not a document")
	}
	if err := c.top(doc.Content[0]); err != nil {
		return Config{}, err
	}
	return c, nil
}

// each calls the callback f for every key of a mapping, with its value. A null counts as an empty mapping. each returns an error
// for anchors, aliases and repeated keys.
func each(n *yaml.Node, what string, f func(key string, k, v *yaml.Node) error) error {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return at(n, "%s must be a mapping of names to values", what)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case k.Kind != yaml.ScalarNode || k.Anchor != "":
			return at(k, "%s: a key must be a name", what)
		case v.Kind == yaml.AliasNode || v.Anchor != "":
			return at(v, "%s: anchors and aliases are not allowed", k.Value)
		case seen[k.Value]:
			return at(k, "%s occurs twice", strconv.Quote(k.Value))
		}
		seen[k.Value] = true
		if err := f(k.Value, k, v); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) top(n *yaml.Node) error {
	return each(n, "the file", func(key string, k, v *yaml.Node) error {
		switch key {
		case "rules":
			return each(v, key, c.rule)
		case "incidents":
			return each(v, key, c.incidents)
		case "webhook":
			return c.webhook(v)
		case "command":
			return c.command(v)
		}
		return at(k, "unknown name %q; known are rules, incidents, webhook and command", key)
	})
}

// rule sets one rule: "off", "on", or a mapping.
func (c *Config) rule(name string, k, v *yaml.Node) error {
	r := c.Rule(name)
	if r == nil {
		var names []string
		for i := range c.Rules {
			names = append(names, c.Rules[i].Name)
		}
		return at(k, "unknown rule %q; known are %s", name, strings.Join(names, ", "))
	}
	if v.Kind == yaml.ScalarNode {
		switch v.Value {
		case "on":
			return nil
		case "off":
			r.Off = true
			return nil
		}
		return at(v, "%s must be on, off or a mapping, not %q", name, v.Value)
	}
	return each(v, name, func(key string, k, v *yaml.Node) error {
		switch {
		case key == "above" && name == Connections:
			const whole = 100
			above, err := number(v, key, 1, whole-1)
			r.Above = int(above)
			return err
		case key == "after" && name != Connections:
			return duration(v, key, maxAfter, &r.After)
		}
		want := "after"
		if name == Connections {
			want = "above"
		}
		return at(k, "rule %s has no setting %q; it has %s", name, key, want)
	})
}

func (c *Config) incidents(key string, k, v *yaml.Node) error {
	switch key {
	case "cooldown":
		return duration(v, key, maxAfter, &c.Cooldown)
	case "per_hour":
		n, err := number(v, key, 1, maxBudget)
		c.Budget = int(n)
		return err
	case "keep":
		n, err := number(v, key, 1, maxKeep)
		c.Keep = int(n)
		return err
	case "size":
		return size(v, key, &c.Size)
	}
	return at(k, "unknown name %q; known are cooldown, per_hour, keep and size", key)
}

func (c *Config) webhook(n *yaml.Node) error {
	var urlNode *yaml.Node
	err := each(n, "webhook", func(key string, k, v *yaml.Node) error {
		switch key {
		case "url":
			urlNode = v
			c.Webhook.URL = v.Value
			return address(v)
		case "timeout":
			return duration(v, key, maxTimeout, &c.Webhook.Timeout)
		}
		return at(k, "unknown name %q; known are url and timeout", key)
	})
	if err == nil && urlNode == nil && n.Tag != "!!null" {
		return at(n, "webhook needs a url")
	}
	return err
}

// address checks a URL. The message does not contain the URL, which may have a password.
func address(v *yaml.Node) error {
	u, err := url.Parse(v.Value)
	switch {
	case v.Kind != yaml.ScalarNode || err != nil || u.Host == "":
		return at(v, "url must be an address such as https://alerts.example.com/hook")
	case u.Scheme != "http" && u.Scheme != "https":
		return at(v, "url must begin with http:// or https://")
	}
	return nil
}

// duration parses a time between minAfter and most.
func duration(v *yaml.Node, key string, most time.Duration, into *time.Duration) error {
	d, err := time.ParseDuration(v.Value)
	switch {
	case v.Kind != yaml.ScalarNode || err != nil:
		return at(v, "%s must be a time such as 10s, not %s", key, valueOf(v))
	case d < minAfter || d > most:
		return at(v, "%s must be from %s to %s, not %s", key, minAfter, most, d)
	}
	*into = d
	return nil
}

func number(v *yaml.Node, key string, least, most int64) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSuffix(v.Value, "%"), 10, 64)
	if v.Kind != yaml.ScalarNode || err != nil || n < least || n > most {
		return 0, at(v, "%s must be a number from %d to %d, not %s", key, least, most, valueOf(v))
	}
	return n, nil
}

func size(v *yaml.Node, key string, into *int64) error {
	text, unit := v.Value, int64(1)
	for suffix, factor := range map[string]int64{"kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30} {
		if before, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = strings.TrimSpace(before), factor
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if v.Kind != yaml.ScalarNode || err != nil || n < 1 || n > maxSize/unit || n*unit < minSize {
		return at(v, "%s must be a size from 1MB to 1024GB, not %s", key, valueOf(v))
	}
	*into = n * unit
	return nil
}

// valueOf returns the value as it stands in the file, quoted and shortened, for an error message.
func valueOf(v *yaml.Node) string {
	const most = 60
	if v.Kind != yaml.ScalarNode {
		return "a mapping or a list"
	}
	text := v.Value
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strconv.Quote(text)
}
