module github.com/virtual-node/hack/tools/pause

go 1.24
