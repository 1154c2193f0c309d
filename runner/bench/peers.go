//go:build linux

package main

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/pglead/pglead/runner/localpg"
)

// addEtcd adds etcd's own wrapper, with a server of one node, if both are there.
func (b *bench) addEtcd(f *field, against string, args ...string) (stop func(), err error) {
	if !b.installed("etcd") {
		return func() {}, nil
	}
	client, err := localpg.FreePort()
	if err != nil {
		return nil, err
	}
	peer, err := localpg.FreePort()
	if err != nil {
		return nil, err
	}
	url, peerURL := "http://127.0.0.1:"+client, "http://127.0.0.1:"+peer
	stop, err = daemon(client, "etcd", "--data-dir", filepath.Join(b.dir, "etcd"), "--log-level", "error",
		"--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL, "--initial-cluster", "default="+peerURL)
	if err != nil {
		return nil, err
	}
	f.add("`etcdctl lock`", against, b.unix, append([]string{"etcdctl", "--endpoints=" + url, "lock", "bench"}, args...)...)
	return stop, nil
}

// addConsul adds consul's wrapper, with an agent for development.
func (b *bench) addConsul(f *field, against string, args ...string) (stop func(), err error) {
	if b.consul == "" {
		return func() {}, nil
	}
	stop, err = daemon("8500", b.consul, "agent", "-dev", "-log-level=err", "-bind=127.0.0.1")
	if err != nil {
		return nil, err
	}
	f.add("`consul lock`", against, b.unix, append([]string{b.consul, "lock", "-shell=false", "bench"}, args...)...)
	return stop, nil
}

// daemon starts a server and waits until it listens.
func daemon(port, name string, args ...string) (stop func(), err error) {
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for range 200 {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = conn.Close()
			time.Sleep(2 * time.Second) // the election of the only node
			return stop, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	return nil, fmt.Errorf("%s never listens", name)
}
