package session

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a session leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
