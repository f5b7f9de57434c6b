// A driver of devices that need no preparation: it answers the kubelet, and writes a line for each call.
//
// The devices are in a ResourceSlice that the caller creates.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type driver struct {
	dra.UnimplementedDRAPluginServer
	registration.UnimplementedRegistrationServer
	name, endpoint string
}

func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.DRAPlugin, Name: d.name, Endpoint: d.endpoint, SupportedVersions: []string{dra.DRAPluginService},
	}, nil
}

func (d *driver) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	fmt.Println("registered", status.PluginRegistered, status.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *driver) NodePrepareResources(
	_ context.Context, request *dra.NodePrepareResourcesRequest,
) (*dra.NodePrepareResourcesResponse, error) {
	answer := &dra.NodePrepareResourcesResponse{Claims: map[string]*dra.NodePrepareResourceResponse{}}
	for _, claim := range request.Claims {
		fmt.Println("prepare", claim.Namespace+"/"+claim.Name, claim.UID)
		answer.Claims[claim.UID] = &dra.NodePrepareResourceResponse{}
	}
	return answer, nil
}

func (d *driver) NodeUnprepareResources(
	_ context.Context, request *dra.NodeUnprepareResourcesRequest,
) (*dra.NodeUnprepareResourcesResponse, error) {
	answer := &dra.NodeUnprepareResourcesResponse{Claims: map[string]*dra.NodeUnprepareResourceResponse{}}
	for _, claim := range request.Claims {
		fmt.Println("unprepare", claim.Namespace+"/"+claim.Name, claim.UID)
		answer.Claims[claim.UID] = &dra.NodeUnprepareResourceResponse{}
	}
	return answer, nil
}

func main() {
	name := flag.String("name", "gpu.example.com", "name of the driver")
	kubelet := flag.String("kubelet", "/var/lib/kubelet", "root directory of the kubelet")
	flag.Parse()
	d := &driver{name: *name, endpoint: filepath.Join(*kubelet, "plugins", "dra.sock")}
	server := grpc.NewServer()
	dra.RegisterDRAPluginServer(server, d)
	registration.RegisterRegistrationServer(server, d)
	// The kubelet watches the second socket, so the first one must exist already.
	for _, path := range []string{d.endpoint, filepath.Join(*kubelet, "plugins_registry", "dra.sock")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			log.Fatal(err)
		}
		_ = os.Remove(path)
		listener, err := net.Listen("unix", path)
		if err != nil {
			log.Fatal(err)
		}
		go func() { log.Fatal(server.Serve(listener)) }()
	}
	select {}
}
