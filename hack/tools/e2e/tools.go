// Package tools names what is built here, for go mod tidy.
package tools

import (
	_ "k8s.io/kubernetes/test/e2e"
)
