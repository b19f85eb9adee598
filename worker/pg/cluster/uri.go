package cluster

import (
	"net/url"
	"strings"
)

// parseURI parses a connection URI without its scheme:
// [user[:password]@][host[:port],...][/dbname][?keyword=value&...].
func parseURI(text string) (settings, error) {
	s := settings{}
	text, query, _ := strings.Cut(text, "?")
	authority, database, _ := strings.Cut(text, "/")
	if userinfo, hosts, ok := strings.Cut(authority, "@"); ok {
		authority = hosts
		user, password, _ := strings.Cut(userinfo, ":")
		if err := s.decode(map[string]string{"user": user, "password": password}); err != nil {
			return nil, err
		}
	}
	hosts, ports, err := splitHosts(authority)
	if err != nil {
		return nil, err
	}
	if err := s.decode(map[string]string{"host": hosts, "port": ports, "dbname": database}); err != nil {
		return nil, err
	}
	return s, s.parseQuery(query)
}

// decode percent-decodes the parts. It adds the parts with a value to the settings.
func (s settings) decode(parts map[string]string) error {
	for name, part := range parts {
		value, err := url.PathUnescape(part)
		if err != nil || strings.IndexByte(value, 0) >= 0 {
			return connError("invalid percent-encoded value of %s in the connection URI", name)
		}
		if value != "" {
			s[name] = value
		}
	}
	return nil
}

// splitHosts splits host[:port],host[:port] into the lists of hosts and ports. An IPv6 address is in brackets.
func splitHosts(text string) (hosts, ports string, err error) {
	parts := strings.Split(text, ",")
	names, numbers := make([]string, 0, len(parts)), make([]string, 0, len(parts))
	for _, part := range parts {
		var host, port string
		if strings.HasPrefix(part, "[") {
			inside, after, ok := strings.Cut(part[1:], "]")
			if !ok || inside == "" || after != "" && after[0] != ':' {
				return "", "", connError("invalid IPv6 host address in the connection URI")
			}
			host, port = inside, strings.TrimPrefix(after, ":")
		} else {
			host, port, _ = strings.Cut(part, ":")
		}
		names, numbers = append(names, host), append(numbers, port)
	}
	ports = strings.Join(numbers, ",")
	if strings.Trim(ports, ",") == "" {
		ports = ""
	}
	return strings.Join(names, ","), ports, nil
}

func (s settings) parseQuery(query string) error {
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		name, err1 := url.PathUnescape(name)
		value, err2 := url.PathUnescape(value)
		if !ok || err1 != nil || err2 != nil || strings.IndexByte(value, 0) >= 0 {
			return connError("invalid query parameter %.40q in the connection URI", name)
		}
		if name == "ssl" && value == "true" { // JDBC's form, which libpq accepts
			name, value = "sslmode", "require"
		}
		if err := s.set(name, value, "the connection URI"); err != nil {
			return err
		}
	}
	return nil
}
