package web

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// source identifies clients by a property that a client cannot change easily: its user if it runs on this host, otherwise the
// prefix of its address. An address alone does not identify a client: each user of this host may use all addresses of
// 127.0.0.0/8, and each host of an IPv6 network may use all addresses of its /64.
type source struct {
	kind   sourceKind
	user   uint32
	prefix netip.Prefix
}

type sourceKind int

const (
	unknownSource sourceKind = iota
	localUser
	localHost // a program of this host, whose user is not known
	network
)

// sourceOf returns the source of a connection.
func sourceOf(c net.Conn) source {
	switch c := c.(type) {
	case *net.UnixConn:
		return peerOf(c)
	case *net.TCPConn:
		remote, ok1 := addrPort(c.RemoteAddr())
		local, ok2 := addrPort(c.LocalAddr())
		if !ok1 || !ok2 {
			break
		}
		if remote.Addr().IsLoopback() || remote.Addr() == local.Addr() {
			if user, ok := socketUser(remote, local); ok {
				return source{kind: localUser, user: user}
			}
			return source{kind: localHost}
		}
		return networkSource(remote.Addr())
	}
	return source{kind: unknownSource}
}

// addrPort returns a TCP address. It converts an IPv4 address that is mapped to IPv6 to IPv4.
func addrPort(a net.Addr) (netip.AddrPort, bool) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()), at.IsValid()
}

// ipv6Source is the number of leading bits that are equal for all addresses of a network (RFC 4291).
const ipv6Source = 64

func networkSource(a netip.Addr) source {
	bits := a.BitLen()
	if a.Is6() {
		bits = ipv6Source
	}
	prefix, err := a.Prefix(bits)
	if err != nil {
		return source{kind: unknownSource}
	}
	return source{kind: network, prefix: prefix}
}

// peerOf returns the user at the other end of a Unix socket.
func peerOf(c *net.UnixConn) source {
	s := source{kind: localHost}
	raw, err := c.SyscallConn()
	if err != nil {
		return s
	}
	_ = raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			s = source{kind: localUser, user: peer.Uid}
		}
	})
	return s
}

// Messages of sock_diag(7).
const (
	diagByFamily  = 20 // SOCK_DIAG_BY_FAMILY
	diagRequest   = 56 // bytes of struct inet_diag_req_v2
	diagID        = 8  // of its field id
	diagReplyID   = 4  // of the field id in struct inet_diag_msg
	diagReplyUser = 64 // of its field idiag_uid
	established   = 1  // TCP_ESTABLISHED
	noCookie      = 0xffffffff
	protocolTCP   = unix.IPPROTO_TCP
	addressBytes  = 16
)

// socketUser returns the user of a TCP socket of this host, by the socket's own address and the address of its peer. It asks
// the kernel, which answers at once. It returns false if the program has closed the socket, or if the host or a filter of
// system calls forbids the request.
func socketUser(own, peer netip.AddrPort) (uint32, bool) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, false
	}
	defer func() { _ = unix.Close(fd) }()
	if unix.Sendto(fd, diagQuestion(own, peer), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return 0, false
	}
	reply := make([]byte, unix.Getpagesize())
	n, from, err := unix.Recvfrom(fd, reply, 0)
	if kernel, ok := from.(*unix.SockaddrNetlink); err != nil || !ok || kernel.Pid != 0 {
		return 0, false
	}
	return readDiag(reply[:n], own)
}

// diagQuestion returns the message to the kernel that requests data of one socket.
func diagQuestion(own, peer netip.AddrPort) []byte {
	m := make([]byte, unix.NLMSG_HDRLEN+diagRequest)
	order := binary.NativeEndian
	order.PutUint32(m, uint32(len(m)))
	order.PutUint16(m[4:], diagByFamily)
	order.PutUint16(m[6:], unix.NLM_F_REQUEST)
	body := m[unix.NLMSG_HDRLEN:]
	body[0], body[1] = unix.AF_INET6, protocolTCP
	if own.Addr().Is4() {
		body[0] = unix.AF_INET
	}
	const allStates = 0xffffffff
	order.PutUint32(body[4:], allStates)
	id := body[diagID:]
	binary.BigEndian.PutUint16(id, own.Port())
	binary.BigEndian.PutUint16(id[2:], peer.Port())
	copy(id[4:], own.Addr().AsSlice())
	copy(id[4+addressBytes:], peer.Addr().AsSlice())
	cookie := id[4+2*addressBytes+4:]
	order.PutUint32(cookie, noCookie)
	order.PutUint32(cookie[4:], noCookie)
	return m
}

// readDiag reads the user from the kernel's answer.
func readDiag(m []byte, own netip.AddrPort) (uint32, bool) {
	if len(m) < unix.NLMSG_HDRLEN+diagReplyUser+4 || binary.NativeEndian.Uint16(m[4:]) != diagByFamily {
		return 0, false
	}
	body := m[unix.NLMSG_HDRLEN:]
	state, port := body[1], binary.BigEndian.Uint16(body[diagReplyID:])
	if state != established || port != own.Port() {
		return 0, false // the kernel may have found a listener instead, or a socket that no program has open
	}
	return binary.NativeEndian.Uint32(body[diagReplyUser:]), true
}
